"""What may look on while a model trains: `Callback`, the summary of a step that it sees, and trackers of other packages.

Nothing here imports a tracker's package before a tracker is made.
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
    """Trackers by their names.

    Args:
        names: of one or more, with commas between them, such as ``tensorboard,wandb``.

    Raises:
        UserError: for an unknown name, a package that is missing, or a tracker that nobody has logged in to.
    """
    given = dict.fromkeys(name.strip() for name in names.split(","))
    for name in given:
        if name not in _TRACKERS:
            raise UserError(f"unknown tracker {name!r}: {nearest(name, _TRACKERS)} [tracker-unknown]")
    return [_TRACKERS[name]() for name in given]
