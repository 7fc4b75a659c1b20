"""Observers of a training run: `Callback`, the step summary that a callback receives, and trackers for other packages.

A tracker is a callback that sends figures to a program such as MLflow, whose package is imported when the tracker is made.
"""

from dpfed.callbacks.callback import Callback, RunInfo, StepSummary
from dpfed.callbacks.mlflow import MLflow
from dpfed.callbacks.tensorboard import TensorBoard
from dpfed.callbacks.wandb import WandB
from dpfed.errors import UserError, nearest

__all__ = ["Callback", "MLflow", "RunInfo", "StepSummary", "TensorBoard", "WandB", "trackers"]

_TRACKERS: dict[str, type[TensorBoard] | type[WandB] | type[MLflow]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def trackers(names: str) -> list[Callback]:
    """Makes trackers from their names.

    Args:
        names: One or more names, separated by commas, such as ``tensorboard,wandb``.

    Raises:
        UserError: If a name is unknown, a package is missing, or a tracker needs a login or cannot reach its server.
    """
    given = dict.fromkeys(name.strip() for name in names.split(","))
    for name in given:
        if name not in _TRACKERS:
            raise UserError(f"unknown tracker {name!r}: {nearest(name, _TRACKERS)} [tracker-unknown]")
    return [_TRACKERS[name]() for name in given]
