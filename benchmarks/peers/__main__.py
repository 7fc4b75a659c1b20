"""dpfed beside jax_privacy, Opacus, torch.func, open_clip and Flower, on the same cores, in turns.

    python -m benchmarks.peers                     all parts that are not in benchmarks/results/peers.json yet
    python -m benchmarks.peers step                one part: step, clip, sampling or federation
    python -m benchmarks.peers step --size 4 --batch 256   some cells of it; --again measures anew what is there
    python -m benchmarks.peers check               whether all compute the same clipped sum
    python -m benchmarks.peers --tiny              to see that it works, with what is installed here; writes nothing

The first call makes the peers' environment in build/peers, about 6 GB. A cell is kept as soon as it is measured, so a command
that is cut off goes on where it was. `taskset -c 0` in front of it measures on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.peers import environment, oracle, sampling, step
from benchmarks.peers.results import keep, kept
from benchmarks.peers.turns import report

PARTS = ("check", "step", "clip", "sampling", "federation")
LARGEST = 1e-4  # difference of two clipped sums, over their length


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--again", action="store_true", help="measure anew what is there")
    parser.add_argument("--size", type=int, nargs="+", default=step.SIZES, metavar="S", help="of the steps' groups")
    parser.add_argument("--batch", type=int, nargs="+", default=step.BATCHES, metavar="B", help="of the steps")
    parser.add_argument("--tiny", action="store_true", help="to see that it works; writes nothing")
    options = parser.parse_args()
    if options.tiny:
        tiny()
        return
    if not environment.inside():
        environment.go_inside()
    for part in options.parts or PARTS:
        if part == "check":
            keep("check", check())
        elif part == "step":
            wanted = step.wanted(options.again, options.size, options.batch)
            unchecked = [size for size in wanted if cell_of_check(size) not in kept("check")]
            keep("check", check(unchecked))
            step.measure(wanted)
        elif part == "clip":
            step.measure_clip(options.again)
        elif part == "sampling":
            sampling.measure(options.again)
        else:
            from benchmarks.peers import federation

            federation.measure(options.again)


def check(sizes: Sequence[int] = step.SIZES) -> dict[str, Any]:
    """Refuses to compare what does not compute the same; returns the differences, by S."""
    cells = {}
    for size in sizes:
        found = oracle.differences(size)
        print(
            f"S = {size}: differences from the loop's sum", {name: f"{value:.0e}" for name, value in found.items()}, flush=True
        )
        if max(found.values()) > LARGEST:
            raise SystemExit(f"not the same sum at S = {size}: {found}")
        cells[cell_of_check(size)] = {"differences": found}
    return cells


def cell_of_check(size: int) -> str:
    """Its name."""
    return f"S = {size}"


def tiny() -> None:
    """The parts that need no network of processes, at sizes of no meaning."""
    check()
    step.of_sizes({size: [32] for size in step.SIZES}, report, tried=16, rounds=1, width=8)
    report("N = 1000, B = 50", sampling.of_cell(1000, 50, 1))


if __name__ == "__main__":
    main()
