"""Lifetime budgets with whatever may be typed, and books after an accident: an answer, and nothing spent is forgotten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import strategies as st

from dpfed.budgets.registry import budgets_of, registry
from dpfed.budgets.reservations import Reservation
from dpfed.budgets.spending import reserve, set_budget
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from tests.fuzz.damage import REPLACEMENTS, damaged, replace
from tests.fuzz.hostile import NUMBERS, TEXTS, spelt
from tests.fuzz.profiles import answer, efforts

_PLAN = PrivacyPlan.of(64, 16, 4, 1.0, steps=4, noise_multiplier=4.0, delta=1e-3, accountant="rdp")


@pytest.fixture
def store(tmp_path) -> RecordStore:
    write_shapes(tmp_path / "store", train=64, validation=0, test=0)
    return RecordStore.open(tmp_path / "store")


def _reservation(number: int, folder: Path) -> Reservation:
    return Reservation(f"{number:016x}", "run", f"run {number}", folder / f"run-{number}", _PLAN)


@efforts
@pytest.mark.parametrize("which", ["one copy", "both copies"])
def test_any_accident_to_a_book(effort, which, store, tmp_path) -> None:
    set_budget(store, 20.0, 1e-3)
    reserve(store, [_reservation(0, tmp_path)])
    known, budget = registry(), store.path / "budget.jsonl"
    sound = budget.read_bytes()
    (spent,) = (one.budget.spent for one in budgets_of(store))
    outside = tmp_path / "outside"
    outside.write_bytes(b"somebody else's")

    def check(bytes_: bytes, how: str | None, shelved: bool) -> None:
        for place in (budget, *known.glob("*.jsonl")):
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink(missing_ok=True)
        copies = [budget, known / f"{json.loads(sound.splitlines()[0])['id']}.jsonl"]
        for copy in copies:
            copy.write_bytes(sound)
        for copy in copies if which == "both copies" else [copies[shelved]]:
            copy.write_bytes(bytes_) if how is None else replace(copy, how, outside)
        outcomes = [
            answer(lambda: budgets_of(store)),
            answer(lambda: reserve(store, [_reservation(1, tmp_path)])),
            answer(lambda: set_budget(store, 30.0, 1e-3)),
        ]
        assert outside.read_bytes() == b"somebody else's"
        if which == "one copy" and isinstance(outcomes[0], list):
            # The other copy knows all: what was reserved counts, and so does what came now.
            (entry,) = outcomes[0]
            assert all(after >= before for after, before in zip(entry.budget.spent, spent, strict=True))
            if isinstance(outcomes[1], list):
                assert {f"{number:016x}" for number in (0, 1)} <= outcomes[1][0].accounts.keys()

    effort.tries(30, check, damaged(sound), st.sampled_from([None, None, None, *REPLACEMENTS]), st.booleans())


_EPSILONS = st.one_of(st.sampled_from([0.01, 0.5, 3.0, 20.0, "1e-6", "8"]), NUMBERS)
_DELTAS = st.one_of(st.sampled_from([1e-3, 1e-9, 1 / 64, 0.5]), NUMBERS)


@pytest.mark.long
@efforts
def test_any_numbers_of_a_budget(effort, store, tmp_path) -> None:
    def check(epsilon: object, delta: object, unit: str | None, distinct: str | None, runs: int) -> None:
        before = [one.budget.spent for one in budgets_of(store)]
        try:
            numbers = float(spelt(epsilon)), float(spelt(delta))
        except (ValueError, OverflowError):
            return
        outcome = answer(lambda: set_budget(store, *numbers, unit, distinct))
        for number in range(runs):
            answer(lambda number=number: reserve(store, [_reservation(number, tmp_path)]))
        budgets = [one.budget for one in budgets_of(store)]
        assert isinstance(outcome, UserError) or budgets
        for budget, spent in zip(budgets, before, strict=False):
            assert budget.filter.admits(budget.spent)
            assert all(after >= was for after, was in zip(budget.spent, spent, strict=True))

    words = st.one_of(st.none(), TEXTS)
    effort.tries(60, check, _EPSILONS, _DELTAS, st.sampled_from([None, None, "record", "user"]), words, st.integers(0, 3))
