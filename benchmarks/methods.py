"""Every method on the same records at the same promise: figures and picture for docs/methods.md.

python -m benchmarks.methods        `dpfed reproduce methods` into runs/methods; what is there already is not trained again
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from benchmarks.record import write_result
from dpfed.console.terminal import watching
from dpfed.report.style import png_bytes
from dpfed.reproduce.charts import charts
from dpfed.reproduce.datasets import SHAPES
from dpfed.reproduce.experiments import experiment
from dpfed.reproduce.outcome import Outcome, reproduce
from dpfed.reproduce.page import write
from dpfed.reproduce.runs import Request

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "methods.png"


def figures(outcome: Outcome) -> dict[str, object]:
    """What the table says of each method, and the plan that they share."""
    methods = {}
    for mechanism in outcome.mechanisms:
        own, best = dataclasses.asdict(mechanism), outcome.best(mechanism.method)
        retrieved = {
            row.setting: {other.metric: round(other.ours / 100, 4) for other in outcome.rows if other.run == row.run}
            for row in outcome.rows
            if row.method == mechanism.method
        }
        intervals = {row.setting: {} for row in outcome.rows if row.method == mechanism.method}
        for row in outcome.rows:
            if row.method == mechanism.method and row.interval:
                intervals[row.setting][row.metric] = [round(end / 100, 4) for end in row.interval]
        methods[own.pop("method")] = own | {"best": best[0].setting, "R@10": retrieved, "intervals": intervals}
    return {"scale": outcome.scale, "methods": methods}


def main() -> None:
    """Trains, prints where the page is, and writes ``benchmarks/results/methods.json`` and ``docs/pictures/methods.png``."""
    chosen = experiment("methods")
    request = Request(chosen, SHAPES, "cpu", chosen.epsilons, None, Path(), public=True, out=Path("runs/methods"))
    with watching() as watcher:
        outcome = reproduce(request, watcher)
    for file in write(outcome).values():
        print(file)
    (canvas,) = charts(outcome).values()
    PICTURE.write_bytes(png_bytes(canvas))
    # The noise is secret and fresh in every run, so there is no seed to give.
    print(write_result("methods", figures(outcome), seeds=[]))


if __name__ == "__main__":
    main()
