"""What a run can disclose of its private records beside the model: names, as ``disclosures.json`` of a run has them."""

from __future__ import annotations

from collections.abc import Iterable

LABELLED_FIGURES = "labelled-figures"
"""Figures were computed from the labels of private training records: k-NN, linear probe."""
AUDITED = "audited"
"""The run was attacked with its own records."""
BOARDS = {"wandb": "Weights & Biases", "mlflow": "MLflow"}
"""Where `dpfed.runs.tracking` can send figures: the option, and what people call it."""

_TASKS = ("knn", "linear")
_FIGURES = ("knn", "linear_probe")


def sent_to(board: str) -> str:
    """Covered figures were sent to one of `BOARDS`."""
    return f"sent-to-{board}"


def uses_labelled_bank(tasks: Iterable[str] = (), figures: Iterable[str] = ()) -> bool:
    """Whether tasks, or figures by their names, are functions of labelled training records."""
    return any(task in _TASKS for task in tasks) or any(name.startswith(_FIGURES) for name in figures)
