"""Configurations as files and as --set: each is a run, or a sentence, at once; and what is a run means one thing."""

from __future__ import annotations

import math
import random
import tomllib
from pathlib import Path

import pytest
from hypothesis import strategies as st

from dpfed.building.plan import plan_of
from dpfed.config import Config, load_config, parse_config
from dpfed.errors import UserError
from dpfed.files.toml_file import put
from dpfed.privacy import accounting
from tests.fuzz.hostile import KEYS, VALUES, spelt
from tests.fuzz.profiles import answer, efforts

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").rglob("*.toml"))
TEXT = {path: path.read_text(encoding="utf-8") for path in CONFIGS if path.parent.name != "sweeps"}


def understood(config: Config) -> None:
    """A configuration that was taken says what it means: written down and read again, it is the same."""
    assert parse_config(tomllib.loads(config.dump())) == config


@pytest.mark.long
@efforts
def test_any_value_under_any_key(effort) -> None:
    def check(base: str, changes: dict[str, object]) -> None:
        tree = tomllib.loads(base)
        for key, value in changes.items():
            if isinstance(answer(lambda key=key, value=value: put(tree, key, value)), UserError):
                return
        outcome = answer(lambda: parse_config(tree))
        if isinstance(outcome, Config):
            understood(outcome)

    effort.tries(
        400, check, st.sampled_from(list(TEXT.values())), st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3)
    )


@pytest.mark.long
@efforts
def test_any_assignment_on_the_command_line(effort) -> None:
    keys = st.one_of(
        st.sampled_from(KEYS), st.text(max_size=8), st.sampled_from(["data", "data.", ".data", "a.b.c.d", "x" * 300])
    )
    assignments = st.lists(
        st.one_of(st.builds("{}={}".format, keys, VALUES.map(spelt)), st.text(max_size=30)), min_size=1, max_size=3
    )

    def check(base: Path, given: list[str]) -> None:
        outcome = answer(lambda: load_config(base, given))
        if isinstance(outcome, Config):
            understood(outcome)

    effort.tries(300, check, st.sampled_from(list(TEXT)), assignments)


@pytest.mark.long
@efforts
def test_any_damage_to_a_file(effort, tmp_path) -> None:
    file = tmp_path / "config.toml"

    def check(base: str, seed: int, what: str) -> None:
        file.write_bytes(_damaged(base.encode(), random.Random(seed), what))  # noqa: S311
        outcome = answer(lambda: load_config(file))
        if isinstance(outcome, Config):
            understood(outcome)

    damages = ["cut", "flip", "insert", "swap lines", "repeat a line", "nested", "dotted", "utf-16", "bom", "latin", "long"]
    effort.tries(150, check, st.sampled_from(list(TEXT.values())), st.integers(0, 2**32), st.sampled_from(damages))


def _damaged(content: bytes, dice: random.Random, what: str) -> bytes:
    at = dice.randrange(len(content))
    lines = content.split(b"\n")
    return {
        "cut": lambda: content[:at],
        "flip": lambda: content[:at] + bytes([content[at] ^ (1 << dice.randrange(8))]) + content[at + 1 :],
        "insert": lambda: content[:at] + dice.randbytes(dice.randrange(1, 9)) + content[at:],
        "swap lines": lambda: b"\n".join(dice.sample(lines, len(lines))),
        "repeat a line": lambda: b"\n".join([*lines, dice.choice(lines)]),
        "nested": lambda: b"x = " + b"[" * dice.choice([10, 1_000, 100_000]),
        "dotted": lambda: b".".join([b"a"] * dice.choice([10, 1_000, 20_000])) + b" = 1",
        "utf-16": lambda: content.decode().encode("utf-16"),
        "bom": lambda: b"\xef\xbb\xbf" + content,
        "latin": lambda: content + "# Zürich".encode("latin-1"),
        "long": lambda: b'name = "' + b"a" * dice.choice([100, 100_000]) + b'"',
    }[what]()


@pytest.mark.long
@efforts
def test_any_plan_keeps_its_promise_or_is_refused(effort) -> None:
    numbers = st.one_of(
        st.sampled_from([0, 1, 2, 3, 10, 10**3, 10**5, 10**7, 10**9, 10**12, -1]), st.integers(1, 10**5), st.integers(1, 200)
    )
    reals = st.one_of(
        st.sampled_from([1e-300, 1e-12, 1e-9, 1e-3, 0.1, 0.5, 0.999, 1.0, 8.0, 100.0, 1e4, 1e9, 1e300, 0.0, -1.0]),
        st.floats(0.05, 20),
    )

    def check(records: int, batch: int, steps: int, target: float, delta: float | None, accountant: str, by: str) -> None:
        privacy = {"batch": batch, "steps": steps, by: target, "accountant": accountant}
        if delta is not None:
            privacy["delta"] = delta
        config = answer(lambda: parse_config({"privacy": privacy, "bounding": {"group_size": 1}}))
        if isinstance(config, UserError):
            return
        plan = answer(lambda: plan_of(records, config))
        if isinstance(plan, UserError):
            return
        epsilon = answer(plan.epsilon)
        if isinstance(epsilon, UserError):
            return
        assert epsilon >= 0 and not math.isnan(epsilon)
        if by == "epsilon":
            assert epsilon <= target
        if accountant == "pld" and math.isfinite(epsilon) and steps <= 10_000:
            # More steps, or less noise, never cost less (within what rounding to a grid moves).
            fewer = answer(lambda: accounting.epsilon(plan.mechanism, max(1, steps // 2), plan.promise.delta))
            assert isinstance(fewer, UserError) or fewer <= epsilon * (1 + 1e-6) + 1e-9

    effort.tries(
        60, check, numbers, numbers, numbers, reals, st.one_of(st.none(), reals), st.sampled_from(["pld", "rdp"]),
        st.sampled_from(["epsilon", "noise_multiplier"]),
    )  # fmt: skip


@pytest.mark.parametrize("path", TEXT, ids=lambda path: path.stem)
def test_what_every_config_means_is_written_down(path) -> None:
    understood(load_config(path))
