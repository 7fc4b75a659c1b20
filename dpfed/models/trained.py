"""Marks models that a run trained on private records, so that no other run starts from them unnoticed."""

from __future__ import annotations

from typing import Any

from torch import nn

from dpfed.errors import UserError

_MARK = "_dpfed_trained_in"


def mark_trained(model: nn.Module, folder: object) -> None:
    """Marks every layer of a model as trained on private records; copies of the layers keep the mark.

    Args:
        model: Model.
        folder: Folder of the run that trained the model.
    """
    for module in model.modules():
        object.__setattr__(module, _MARK, str(folder))


def trained_in(model: nn.Module) -> str | None:
    """Returns the folder of the run that trained a layer of this model on private records; ``None``: no layer is marked."""
    return next((at for module in model.modules() if (at := getattr(module, _MARK, None))), None)


def refuse_trained(model: nn.Module) -> None:
    """Refuses to start a run from a model that was trained on private records.

    The card of the new run would not count the epsilon that this training spent.

    Raises:
        UserError: If a layer of the model is marked.
    """
    if (folder := trained_in(model)) is not None:
        raise UserError(
            f"this model comes from the run {folder}, which trained it on private records (or does not say on which records). "
            f"The card of another run would not count the epsilon of {folder}. Make the model anew for each run. A model that "
            f"dpfed builds can be trained further: set model.start = '{folder}' in a configuration; the card then names both "
            "runs. [own-trained]"
        )


def saw_private_records(description: dict[str, Any]) -> bool:
    """Returns whether a model was trained on records that are not public, as far as its description shows.

    The result is True if a listed run used such records, and also if the description lists no runs at all. A listed run about
    which nothing is known, such as that of open_clip's weights, is treated like a run on public records.

    Args:
        description: Description of a model folder (`dpfed.models.description.describe`).
    """
    runs = description.get("trained")
    return not runs or any(run.get("public") is False for run in runs)
