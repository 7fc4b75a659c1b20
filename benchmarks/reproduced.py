"""Reproduces a table or figure of a paper with `dpfed reproduce`, and keeps it as a result file.

    python -m benchmarks.reproduced table1 --data cifar10 --path ../shared/data/cifar10 --epsilon 10

This command writes ``benchmarks/results/table1-cifar10-cpu-epsilon10.json``. The runs stay in ``runs/reproduce``; finished runs
are not trained again.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from benchmarks.record import write_result
from dpfed.console.terminal import watching
from dpfed.errors import UserError
from dpfed.reproduce.comparison import data_set
from dpfed.reproduce.experiments import experiment
from dpfed.reproduce.outcome import Outcome, reproduce
from dpfed.reproduce.runs import Request


def figures(outcome: Outcome) -> dict[str, Any]:
    """Returns the title, scale, guarantee and rows of an outcome, as a mapping for JSON."""
    rows = [
        {
            "name": row.name,
            "method": row.method,
            "x": row.x,
            "epsilon": None if math.isinf(row.epsilon) else row.epsilon,
            "metric": row.metric,
            "ours": None if row.ours is None else round(row.ours, 2),
            "interval": row.interval and [round(end, 2) for end in row.interval],
            "published": row.published,
        }
        for row in outcome.rows
    ]
    return {"title": outcome.request.experiment.title, "scale": outcome.scale, "promise": outcome.promise, "rows": rows}


def main() -> None:
    """Trains the runs, and writes the result file and the files of `dpfed reproduce`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", help="such as table1; `dpfed reproduce --list` has them all")
    parser.add_argument("--data", required=True)
    parser.add_argument("--path", type=Path, default=Path("data"), help="where the records are")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--scale", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--methods", help="only these, such as group,batch")
    parser.add_argument("--public", action="store_true", help="anyone may see the records")
    chosen = parser.parse_args()
    try:
        wanted = experiment(chosen.experiment)
        request = Request(
            wanted,
            data_set(chosen.data, wanted.data),
            chosen.scale,
            tuple(chosen.epsilon or wanted.epsilons),
            tuple(chosen.methods.split(",")) if chosen.methods else None,
            chosen.path,
            chosen.public,
            Path("runs/reproduce"),
        )
        with watching() as progress:
            outcome = reproduce(request, progress)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    print(outcome.write()["page"])
    # Keys and noise are secret and fresh in every run, so there is no seed to give.
    print(write_result(request.name, figures(outcome), seeds=[]))


if __name__ == "__main__":
    main()
