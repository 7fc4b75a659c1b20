"""Measuring a run again, with other settings or after an interruption."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.evaluation.suite import Evaluation
from dpfed.run import RunDirectory
from dpfed.training.checkpoint import Checkpoints, load_weights
from dpfed.training.session import assemble
from dpfed.watching import Silent, Watcher


def evaluate_run(
    folder: str | Path, split: str | None = None, tasks: list[str] | None = None, watcher: Watcher | None = None
) -> list[Evaluation]:
    """Measures a run's untrained and trained model; a finished run's results.json takes the new figures in.

    Args:
        folder: a run directory. An unfinished run is measured at its last checkpoint and left as it is.
        split: ``validation`` or ``test``; the run's own by default.
        tasks: the run's own by default.
        watcher: is told what is done.

    Raises:
        UserError: if there is nothing to measure.
    """
    run = RunDirectory.open(folder)
    tree = run.config().model_dump(mode="json")
    tree["evaluation"] |= {"split": split} if split else {}
    tree["evaluation"] |= {"tasks": tasks} if tasks else {}
    saved = Checkpoints(run.checkpoints, 1).paths()
    if not saved:
        raise UserError(f"{folder} has no checkpoint yet: `dpfed resume {folder}` trains it.")
    watcher = watcher or Silent()
    parts = assemble(parse_config(tree, "evaluation"), watcher=watcher)
    watcher.note("measuring the model before training")
    load_weights(saved[0], parts.model)
    figures = parts.evaluate("untrained", 0)
    load_weights(saved[-1], parts.model)
    watcher.note("measuring the trained model")
    figures += parts.evaluate("trained", int(saved[-1].stem.removeprefix("step-")))
    if run.finished:
        _merge(run, figures)
    return figures


def _merge(run: RunDirectory, figures: list[Evaluation]) -> None:
    def identity(item: dict) -> tuple:
        return item["name"], item["model"], item["split"], item["protocol"], item["step"]

    results = json.loads(run.results.read_text(encoding="utf-8"))
    new = [dataclasses.asdict(figure) for figure in figures]
    replaced = {identity(item) for item in new}
    results["evaluations"] = [item for item in results["evaluations"] if identity(item) not in replaced] + new
    run.write(run.results, json.dumps(results, indent=2) + "\n")
