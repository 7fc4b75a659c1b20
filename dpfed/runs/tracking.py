"""A finished run's figures at Weights & Biases or MLflow: those that its card covers, and nothing else.

They are sent when the run has ended, and not step by step: how long a step takes depends on the records that it drew, and no
epsilon covers that. `dpfed serve` shows a run in progress.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dpfed.artifacts.directory import RunDirectory, scalars
from dpfed.artifacts.provenance import sent_to
from dpfed.artifacts.view import results_in
from dpfed.errors import UserError
from dpfed.progress import Watcher
from dpfed.protocol.statement import terms_of
from dpfed.runs.assembly import assemble
from dpfed.runs.outcome import rewrite_artifacts
from dpfed.runs.resolution import resolve

COVERED = frozenset(
    {
        "training/epsilon",
        "training/learning_rate",
        "training/noisy_gradient_norm",
        "progress/loss",
        "progress/clip_rate",
        "progress/norm",
    }
)
"""Figures of metrics.jsonl that follow from noisy sums and from the plan alone, as the card says."""
_PUBLIC = ("method", "epsilon", "delta", "accountant", "noise_multiplier", "steps_charged", "records", "batch", "clip_norm")
_PROJECT = "dpfed"

Lines = list[tuple[int, dict[str, float]]]


def require(boards: Iterable[str]) -> None:
    """Refuses boards whose package is missing.

    Raises:
        UserError: naming the package.
    """
    for board in boards:
        try:
            importlib.import_module(board)
        except ImportError as error:
            raise UserError(f"--{board} needs the package {error.name or board}: pip install 'dpfed[{board}]'.") from error


def send(run: RunDirectory, boards: Sequence[str], watcher: Watcher) -> None:
    """Sends the figures of a finished run; its card says so before anything leaves.

    Args:
        run: finished.
        boards: names in `BOARDS`.
        watcher: learns what is done.

    Raises:
        UserError: for a run on private records without a guarantee; if the card cannot be written, or a board refuses.
    """
    if not boards:
        return
    require(boards)
    results = results_in(run.results)
    lines, facts = covered(run, results), {name: results["privacy"].get(name) for name in _PUBLIC}
    watcher.note(f"writing into the card that figures go to {' and '.join(boards)}")
    for board in boards:
        run.disclose(sent_to(board))
    parts = assemble(resolve(run.config(), watcher), watcher=watcher, terms=terms_of(run))
    with run.locked():
        rewrite_artifacts(run, parts, results)
        run.write(run.results, json.dumps(results, indent=2, allow_nan=False) + "\n")
    for board in boards:
        watcher.note(f"sending {len(lines)} lines of figures to {board}")
        try:
            BOARDS[board](str(results["name"]), facts, lines)
        except Exception as error:  # whatever the library or the network raises
            raise UserError(
                f"{board} did not accept the figures ({error or type(error).__name__}); the run is finished: "
                f"`dpfed resume {run.path} --{board}` sends them again."
            ) from error


def covered(run: RunDirectory, results: dict[str, Any]) -> Lines:
    """Step and figures of each line of metrics.jsonl that has any to send.

    Evaluation figures are exact functions of held-out records: they are sent only where everybody may see the records.

    Raises:
        UserError: for a run on private records without a guarantee.
    """
    public = run.provenance["data"]["keyed"] is False  # a keyed fingerprint is that of private records
    if not public and not results["privacy"]["guarantee"]:
        raise UserError(f"{run.path} has no guarantee, and its records are not public: nothing of it is sent.")
    lines = [(line["step"], scalars(line)) for line in run.metric_lines()]
    kept = [(step, {name: value for name, value in own.items() if public or name in COVERED}) for step, own in lines]
    return [(step, own) for step, own in kept if own]


def _wandb(name: str, facts: dict[str, Any], lines: Lines) -> None:
    import wandb

    # Not the machine's name, load and programs, nor the folder's git: the card says nothing of them.
    quiet = wandb.Settings(
        host="none",
        console="off",
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    board = wandb.init(project=_PROJECT, name=name, config=facts, settings=quiet)
    for step, figures in lines:
        board.log(figures, step=step)
    board.finish()


def _mlflow(name: str, facts: dict[str, Any], lines: Lines) -> None:
    from mlflow import MlflowClient

    client = MlflowClient()  # unlike mlflow.start_run it adds neither the user's name nor that of the program
    experiment = client.get_experiment_by_name(_PROJECT)
    experiment_id = client.create_experiment(_PROJECT) if experiment is None else experiment.experiment_id
    board = client.create_run(experiment_id, run_name=name).info.run_id
    for key, value in facts.items():
        client.log_param(board, key, value)
    for step, figures in lines:
        for key, value in figures.items():
            client.log_metric(board, key.replace("[", ".").replace("]", ""), value, step=step)
    client.set_terminated(board)


BOARDS: dict[str, Callable[[str, dict[str, Any], Lines], None]] = {"wandb": _wandb, "mlflow": _mlflow}
