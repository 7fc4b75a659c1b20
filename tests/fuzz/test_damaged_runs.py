"""Run directories after an accident: each command works, or says what is damaged, and nothing more is lost by asking."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import strategies as st

import dpfed
import dpfed.runs.pretraining
import dpfed.training.steps
from dpfed.artifacts.export import export_model
from dpfed.artifacts.view import read_view
from dpfed.config import parse_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger
from dpfed.report.html import write_report
from dpfed.runs.reevaluation import evaluate_run
from tests.fuzz.profiles import answer, answered_in_time, efforts


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A finished run, and one that stopped after three of its five steps."""
    folder = tmp_path_factory.mktemp("runs")
    write_shapes(folder / "store", train=48, validation=0, test=24)
    config = parse_config(
        {
            "name": "tiny",
            "data": {"source": "store", "path": str(folder / "store"), "size": 16},
            "model": {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 64, "embedding": 8},
            "bounding": {"group_size": 4, "engine": "loop"},
            "privacy": {"epsilon": 8.0, "accountant": "rdp", "batch": 16, "steps": 5},
            "optimizer": {"ema": 0.9},
            "training": {"device": "cpu", "checkpoint_every": 2},
            "evaluation": {"tasks": ["retrieval"]},
        }
    )
    dpfed.pretrain(config, folder / "done")
    took = dpfed.training.steps.train

    def interrupted(transport, coordinator, steps, *rest) -> None:
        took(transport, coordinator, range(steps.start, 3), *rest)
        raise UserError("stopped by the test after three steps.")

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(UserError):
        patch.setattr(dpfed.training.steps, "train", interrupted)
        dpfed.pretrain(config, folder / "half")
    return folder


ACCIDENTS = "cut, empty, flip, lost, a folder, a link to nowhere, a link to itself, a pipe, another file, a line".split(", ")
ASKED = {
    "resume": lambda run: dpfed.runs.pretraining.resume(run),
    "evaluate": lambda run: evaluate_run(run),
    "report": lambda run: write_report(run / "again.html", [read_view(run)]),
    "load": lambda run: dpfed.load(run),
    "export": lambda run: export_model(run, run.parent / "exported"),
    "ledger": lambda run: Ledger.open(run / "ledger.jsonl").epsilon,
}


def _befall(path: Path, accident: str, dice: random.Random, files: list[Path]) -> None:
    content = path.read_bytes()
    at = dice.randrange(len(content) or 1)
    lines = content.split(b"\n")
    changed = {
        "cut": content[:at],
        "empty": b"",
        "flip": content[:at] + bytes([content[at] ^ (1 << dice.randrange(8))]) + content[at + 1 :] if content else b"\xff",
        "another file": dice.choice(files).read_bytes(),
        "a line": b"\n".join(lines[:-2] + [dice.choice([b"{}", b"[]", b"null", b'{"step": "x"}', b"7", b"\xff\xfe"]), b""]),
    }
    path.unlink()
    if accident in changed:
        path.write_bytes(changed[accident])
    elif accident == "a folder":
        path.mkdir()
    elif accident == "a pipe":
        os.mkfifo(path)
    elif accident != "lost":
        path.symlink_to(path if accident == "a link to itself" else "/nowhere/at/all")


@pytest.mark.long
@efforts
@pytest.mark.parametrize("which", ["done", "half"])
def test_any_accident_to_a_run(effort, runs, which, tmp_path) -> None:
    sound = runs / which
    files = (path for path in sound.rglob("*") if path.is_file() and not path.name.startswith(".lock"))
    names = sorted(str(path.relative_to(sound)) for path in files)
    spent = Ledger.open(sound / "ledger.jsonl").charged

    def check(name: str, accident: str, asked: str, seed: int) -> None:
        dice = random.Random(seed)  # noqa: S311
        run = tmp_path / "run"
        for old in (run, tmp_path / "exported"):
            shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(sound, run)
        _befall(run / name, accident, dice, [sound / other for other in names])
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and not path.is_fifo()}
        outcome = answer(lambda: ASKED[asked](run))
        if isinstance(outcome, UserError):
            # A refusal loses nothing: what was there is there, but for what an earlier, sound part of a resume wrote anew.
            kept = {path for path in before if path.exists()}
            assert asked == "resume" or kept == set(before)
            assert asked == "resume" or all(path.read_bytes() == before[path] for path in kept)
        elif asked == "resume" and which == "half":
            # Whatever was damaged, no step that was spent is forgotten. (A finished run is only shown.)
            assert Ledger.open(run / "ledger.jsonl").charged >= spent

    effort.tries(
        40, check, st.sampled_from(names), st.sampled_from(ACCIDENTS), st.sampled_from(list(ASKED)), st.integers(0, 2**32)
    )


@pytest.mark.long
@pytest.mark.parametrize("which", ["done", "half"])
def test_no_question_waits_for_a_pipe_in_a_files_place(runs, which, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / which, run)
    for path in sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock"):
        content = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        for asked in ("ledger", "load", "export"):
            with answered_in_time():
                answer(lambda asked=asked: ASKED[asked](run))
            shutil.rmtree(tmp_path / "exported", ignore_errors=True)
        path.unlink()
        path.write_bytes(content)
