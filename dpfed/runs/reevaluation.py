"""Measures a run again, with other settings or after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import LABELLED_FIGURES, uses_labelled_bank
from dpfed.artifacts.resuming import resuming_command
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
    """Measures a run's untrained and trained model, and adds the figures to a finished run's results and report.

    The card marks figures that are computed from private training labels (k-NN, linear probe). The mark is written to disk
    before anything is measured. If the run is unfinished, its card will show the mark later.

    Args:
        folder: Folder of the run. An unfinished run is measured at its last checkpoint; nothing but the mark is written to it.
        split: Split of the evaluation, ``validation`` or ``test``; default: the run's own.
        tasks: Names of the tasks; default: the run's own.
        progress: Progress, which shows the stages.
        not_covered: Reason why figures may be computed from training labels although the records have a lifetime budget, which
            does not cover such figures; default: the reason in the run's configuration.

    Returns:
        The figures, first the untrained model's.

    Raises:
        UserError: If the folder holds no run, or one without a checkpoint, or one with parts that were passed in Python; if the
            run is damaged; if the split or the tasks do not suit the records; if the mark or the figures cannot be written,
            for example because another process holds the run; if figures computed from training labels lack a reason that the
            budget requires; or if a reason is given although none is required.
    """
    run = RunDirectory.open(folder)
    if isinstance(tasks, str):
        raise UserError(f"expected a list of tasks, such as [{tasks!r}]. [run-tasks-text]")
    if run.finished:
        results_in(run.results)  # fails before anything is measured if the results, which get the figures, are damaged
        ledger_of(run)  # the same for the ledger: the new card states what was spent
    tree = run.config().model_dump(mode="json")
    tree["evaluation"] |= {} if split is None else {"split": split}
    tree["evaluation"] |= {"tasks": tasks} if tasks else {}
    saved = Checkpoints(run.checkpoints, 1).paths()
    if not saved:
        raise UserError(f"{folder} has no checkpoint yet: {resuming_command(run)} trains it. [run-checkpoint-missing]")
    progress = progress or Silent()
    try:
        parts = build(read_back(tree, "evaluation"), progress=progress, terms=terms_at(run.terms))
    except UserError as error:
        if error.code.startswith("eval-"):  # the run's configuration cannot change, but this command can choose split and tasks
            error.command = f"`dpfed evaluate {folder} --split SPLIT --task TASK` chooses split and task."
        raise
    labelled, asked = not parts.store.public and uses_labelled_bank(parts.evaluator.tasks), False
    if labelled:
        why = parts.config.privacy.not_covered if not_covered is None else not_covered
        what = "k-NN and linear probe are exact functions of training labels"
        asked = budgeting.not_covered(run, parts.store, what, why)
    if not_covered is not None and not asked:
        raise UserError(
            "the reason (not_covered) has no effect: the records have no lifetime budget, or these tasks read no private "
            "training label. Leave it out. [run-figures-covered]",
            command="On the command line: --not-covered.",
        )
    if labelled:
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


_WAIT = 30.0  # seconds to wait while another evaluation writes its figures


def _merged(run: RunDirectory, figures: list[Evaluation]) -> dict[str, Any]:
    """Returns the run's results, in which new figures replace older figures of the same kind."""

    def identity(item: dict) -> tuple:
        return item["name"], item["model"], item["split"], item["protocol"], item["step"]

    results = results_in(run.results)
    new = [figure.facts() for figure in figures]
    replaced = {identity(item) for item in new}
    results["evaluations"] = [item for item in results["evaluations"] if identity(item) not in replaced] + new
    return results
