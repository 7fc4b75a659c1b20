"""A step's clipped sum by every contender: time and peak memory, over S and B.

How much each takes at a time (of dpfed: which engine) is tried beforehand on a batch of 256, and the fastest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.contenders import CLIPS, PLAIN, STEPS
from benchmarks.peers.results import keep, kept
from benchmarks.peers.turns import Case, cases, in_turns, report

SIZES, BATCHES, TRIED = (1, 4, 16), (256, 1024, 4096), 256
CLIP_BATCH, CLIP = 16, "ViT-B-32, B = 16"
ROUNDS = 2
LONGEST = 40.0  # seconds: a contender whose step would take longer is left out of a cell


def wanted(again: bool, sizes: Sequence[int], batches: Sequence[int]) -> dict[int, list[int]]:
    """B of the cells that are not there yet, or of all, by S."""
    found = {size: [batch for batch in batches if again or cell(size, batch) not in kept("step")] for size in sizes}
    return {size: batches for size, batches in found.items() if batches}


def measure(wanted: dict[int, list[int]]) -> None:
    """Those cells."""
    if wanted:
        of_sizes(wanted, kept_as_found)


def measure_clip(again: bool) -> None:
    """The cell of ViT-B-32, if it is not there yet."""
    if again or CLIP not in kept("step"):
        at_once = {name: contender.at_once[0] for name, contender in CLIPS.items()}
        with cases(list(CLIPS)) as ones:
            kept_as_found(CLIP, in_turns(ones, {"batch": CLIP_BATCH}, at_once, ROUNDS, "open_clip, adapters"))


def cell(size: int, batch: int) -> str:
    """Its name."""
    return f"small CNN, S = {size}, B = {batch}"


def kept_as_found(name: str, found: dict[str, Any]) -> None:
    """Prints a cell and puts it into the file."""
    report(name, found)
    keep("step", {name: found}, rounds=ROUNDS)


def of_sizes(
    wanted: dict[int, list[int]], told: Callable[[str, Any], None], tried: int = TRIED, rounds: int = ROUNDS, **more: Any
) -> None:
    """Cells, by all contenders that are there and can do them.

    Args:
        wanted: B of each cell, by S.
        told: gets each cell's name and figures.
        tried: B of the trials.
        rounds: see `in_turns`.
        more: of the problem.
    """
    with cases([name for name, contender in STEPS.items() if contender.there]) as every:
        for size, batches in wanted.items():
            ones = {name: one for name, one in every.items() if STEPS[name].groups or size == 1}
            trials = {name: trial(name, one, {"group": size, "batch": tried, **more}) for name, one in ones.items()}
            for batch in batches:
                late = [name for name, found in trials.items() if found["seconds"] / tried * batch > LONGEST]
                rest = {name: one for name, one in ones.items() if name not in late}
                at_once = {name: trials[name]["at_once"] for name in rest}
                problem = {"group": size, "batch": batch, **more}
                told(cell(size, batch), in_turns(rest, problem, at_once, rounds, PLAIN) | {"left_out": late})


def trial(name: str, one: Case, problem: dict[str, Any]) -> dict[str, Any]:
    """How a contender is fastest, and its seconds for the problem."""
    most = problem["batch"] // (1 if name == PLAIN else problem["group"])
    ways = dict.fromkeys(way if isinstance(way, str) else min(way, most) for way in STEPS[name].at_once)
    return one.ask(**{"try": problem}, at_once=list(ways))
