"""Measuring a run again, with other settings or after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import LABELLED_FIGURES, uses_labelled_bank
from dpfed.artifacts.verification import ledger_of
from dpfed.artifacts.view import results_in
from dpfed.config import read_back
from dpfed.errors import UserError
from dpfed.evaluation.measured import Evaluation
from dpfed.models.parameters import TrainableVector
from dpfed.progress import Progress, Silent
from dpfed.protocol.statement import terms_at
from dpfed.runs import budgeting
from dpfed.runs.build import build
from dpfed.runs.noise_alone import noise_alone
from dpfed.runs.outcome import rewrite_artifacts
from dpfed.training.checkpoint import Checkpoints, steps_of


def evaluate_run(
    folder: str | Path,
    split: str | None = None,
    tasks: list[str] | None = None,
    progress: Progress | None = None,
    not_covered: str | None = None,
) -> list[Evaluation]:
    """Measures a run's untrained and trained model; a finished run's results, card and report take the new figures in.

    Figures that are functions of private training labels (k-NN, linear probe) are marked on the card. The mark is on disk
    before anything is measured, also for a run that is not finished: its card will have it.

    Args:
        folder: a run directory. An unfinished run is measured at its last checkpoint; nothing but the mark is written to it.
        split: ``validation`` or ``test``; the run's own by default.
        tasks: the run's own by default.
        progress: learns what is done.
        not_covered: under a lifetime budget, why figures of training labels may be measured; default: the run's own words.

    Raises:
        UserError: if there is nothing to measure, or the mark cannot be written; for such figures without a reason.
    """
    run = RunDirectory.open(folder)
    if isinstance(tasks, str):
        raise UserError(f"expected a list of tasks, such as [{tasks!r}]. [run-tasks-text]")
    if run.finished:
        results_in(run.results)  # before anything is measured: the figures are to go into it
        ledger_of(run)  # the same: a card that is written again says what was spent
    tree = run.config().model_dump(mode="json")
    tree["evaluation"] |= {"split": split} if split else {}
    tree["evaluation"] |= {"tasks": tasks} if tasks else {}
    saved = Checkpoints(run.checkpoints, 1).paths()
    if not saved:
        raise UserError(f"{folder} has no checkpoint yet: `dpfed resume {folder}` trains it. [run-checkpoint-missing]")
    progress = progress or Silent()
    try:
        parts = build(read_back(tree, "evaluation"), progress=progress, terms=terms_at(run.terms))
    except UserError as error:
        if error.code.startswith("eval-"):  # the run is there, and its configuration stays: what is measured is chosen here
            error.command = f"Here, `dpfed evaluate {folder} --split SPLIT --task TASK` chooses them."
        raise
    if not parts.store.public and uses_labelled_bank(parts.evaluator.tasks):
        why = not_covered or parts.config.privacy.not_covered
        budgeting.not_covered(run, parts.store, "k-NN and linear probe are exact functions of training labels", why)
        run.disclose(LABELLED_FIGURES)
    progress.note("measuring the model before training")
    parts.learner.load_weights(saved[0])
    untrained, weights = parts.evaluator(parts.model, "untrained", 0), TrainableVector(parts.model).gather()
    parts.learner.load_weights(saved[-1])
    progress.note("measuring the trained model")
    step = steps_of(saved[-1])
    trained = parts.evaluator(parts.model, "trained", step)
    noise = noise_alone(parts, weights) if trained and steps_of(saved[0]) < step else []
    figures = untrained + [figure.compared(untrained, noise) for figure in trained]
    if run.finished:
        with run.locked(wait=_WAIT):
            # The card first: a crash in between leaves a mark without its figures, and never figures without their mark.
            results = _merged(run, figures)
            rewrite_artifacts(run, parts, results)
            run.write(run.results, json.dumps(results, indent=2, allow_nan=False) + "\n")
    return figures


_WAIT = 30.0  # seconds for another evaluation to write what it found


def _merged(run: RunDirectory, figures: list[Evaluation]) -> dict[str, Any]:
    """The run's results with new figures in place of older ones of the same kind."""

    def identity(item: dict) -> tuple:
        return item["name"], item["model"], item["split"], item["protocol"], item["step"]

    results = results_in(run.results)
    new = [figure.facts() for figure in figures]
    replaced = {identity(item) for item in new}
    results["evaluations"] = [item for item in results["evaluations"] if identity(item) not in replaced] + new
    return results
