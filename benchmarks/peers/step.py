"""A step's clipped sum by every contender: time and peak memory, over S and B.

How much each takes at a time is tried beforehand on a batch of 256, and the fastest counts.
"""

from __future__ import annotations

from typing import Any

from benchmarks.peers.contenders import CLIPS, PLAIN, STEPS
from benchmarks.peers.results import keep, kept
from benchmarks.peers.turns import Case, cases, in_turns, report

SIZES, BATCHES, TRIED = (1, 4, 16), (256, 1024, 4096), 256
CLIP_BATCH, CLIP = 16, "ViT-B-32, B = 16"
ROUNDS = 3
LONGEST = 40.0  # seconds: a contender whose step would take longer is left out of a cell


def measure(again: bool) -> None:
    """All cells that are not there yet, or all."""
    for size in SIZES:
        batches = [batch for batch in BATCHES if again or cell(size, batch) not in kept("step")]
        if batches:
            of_size(size, batches, kept_as_found)
    if again or CLIP not in kept("step"):
        with cases(list(CLIPS)) as ones:
            kept_as_found(CLIP, in_turns(ones, {"batch": CLIP_BATCH}, {}, ROUNDS, "open_clip, adapters"))


def cell(size: int, batch: int) -> str:
    """Its name."""
    return f"small CNN, S = {size}, B = {batch}"


def kept_as_found(name: str, found: dict[str, Any]) -> None:
    """Prints a cell and puts it into the file."""
    report(name, found)
    keep("step", {name: found}, rounds=ROUNDS)


def of_size(size: int, batches: list[int], told: Any, tried: int = TRIED, rounds: int = ROUNDS, **more: Any) -> None:
    """The cells of one S, by all contenders that are there and can do it.

    Args:
        size: S.
        batches: B of each cell.
        told: gets each cell's name and figures.
        tried: B of the trials.
        rounds: see `in_turns`.
        more: of the problem.
    """
    names = [name for name, contender in STEPS.items() if contender.there and (contender.groups or size == 1)]
    with cases(names) as ones:
        trials = {name: trial(name, one, {"group": size, "batch": tried, **more}) for name, one in ones.items()}
        for batch in batches:
            late = [name for name, found in trials.items() if found["seconds"] / tried * batch > LONGEST]
            rest = {name: one for name, one in ones.items() if name not in late}
            at_once = {name: trials[name]["at_once"] for name in rest}
            problem = {"group": size, "batch": batch, **more}
            told(cell(size, batch), in_turns(rest, problem, at_once, rounds, PLAIN) | {"left_out": late})


def trial(name: str, one: Case, problem: dict[str, Any]) -> dict[str, Any]:
    """How much a contender takes at a time, and its seconds for the problem."""
    most = problem["batch"] // (1 if name == PLAIN else problem["group"])
    return one.ask(**{"try": problem}, at_once=sorted({min(number, most) for number in STEPS[name].at_once}))
