"""Every method on the same records at the same promise: figures and picture for docs/methods.md.

python -m benchmarks.methods [NAME ...]

`dpfed reproduce methods` into runs/methods; what is there already is not trained again. With names, such as ``group public``,
the other methods keep what the result file says of them. ``group`` is always measured, for times are compared with its own.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, commit, figures, write_result
from dpfed.console.terminal import watching
from dpfed.report.style import png_bytes
from dpfed.reproduce.charts import charts
from dpfed.reproduce.comparison import SHAPES
from dpfed.reproduce.experiments import experiment
from dpfed.reproduce.outcome import Mechanism, Outcome, Row, reproduce
from dpfed.reproduce.page import write
from dpfed.reproduce.runs import Request

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "methods.png"


def measured(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """What the table says of each method."""
    methods = {}
    for mechanism in outcome.mechanisms:
        own, best = dataclasses.asdict(mechanism), outcome.best(mechanism.method)
        rows = [row for row in outcome.rows if row.method == mechanism.method]
        retrieved: dict[str, dict[str, Any]] = {row.setting: {} for row in rows}
        intervals: dict[str, dict[str, Any]] = {row.setting: {} for row in rows}
        for row in rows:
            retrieved[row.setting][row.metric] = None if row.ours is None else round(row.ours / 100, 4)
            if row.interval:
                intervals[row.setting][row.metric] = [round(end / 100, 4) for end in row.interval]
        methods[mechanism.method] = own | {
            "best": best[0].setting,
            "R@10": retrieved,
            "intervals": intervals,
            "commit": commit(),
        }
    return methods


def drawn(outcome: Outcome, methods: dict[str, dict[str, Any]]) -> bytes:
    """The picture of all methods, those of earlier commands too."""
    fields = [field.name for field in dataclasses.fields(Mechanism)]
    mechanisms = [Mechanism(**{name: method[name] for name in fields}) for method in methods.values()]
    rows = [
        Row(one["title"], name, setting, None, 0.0, metric, 100 * share, None, one["sound"], setting)
        for name, one in methods.items()
        for setting, found in one["R@10"].items()
        for metric, share in found.items()
    ]
    (canvas,) = charts(dataclasses.replace(outcome, mechanisms=mechanisms, rows=rows)).values()
    return png_bytes(canvas)


def main(names: list[str]) -> None:
    """Trains, prints where the page is, and writes ``benchmarks/results/methods.json`` and ``docs/pictures/methods.png``."""
    chosen = experiment("methods")
    wanted = tuple(dict.fromkeys(["group", *names])) if names else None
    request = Request(chosen, SHAPES, "cpu", chosen.epsilons, wanted, Path(), public=True, out=Path("runs/methods"))
    with watching() as watcher:
        outcome = reproduce(request, watcher)
    for file in write(outcome).values():
        print(file)
    kept: dict[str, Any] = figures("methods")["methods"] if (RESULTS / "methods.json").exists() else {}
    found = {name: {"method": name} | method for name, method in (kept | measured(outcome)).items()}
    order = list(dict.fromkeys(variant.method for variant in chosen.variants))
    methods = {name: found[name] for name in order if name in found}
    PICTURE.write_bytes(drawn(outcome, methods))
    # The noise is secret and fresh in every run, so there is no seed to give.
    print(write_result("methods", {"scale": outcome.scale, "methods": methods}, seeds=[]))


if __name__ == "__main__":
    main(sys.argv[1:])
