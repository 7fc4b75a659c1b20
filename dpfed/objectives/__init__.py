"""The loss of one group: a file for each, found by its name."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

from dpfed.objectives.objective import GroupLoss, Objective

if TYPE_CHECKING:
    from dpfed.config import ObjectiveConfig

__all__ = ["OBJECTIVES", "GroupLoss", "Objective", "keys_of_losses", "loss_of"]


def _found() -> dict[str, Objective]:
    files = {file.name: importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)}
    return {name: file.OBJECTIVE for name, file in files.items() if hasattr(file, "OBJECTIVE")}


OBJECTIVES: dict[str, Objective] = _found()


def loss_of(objective: ObjectiveConfig) -> GroupLoss:
    """The loss of one group that a configuration names, with the options that it gives."""
    return functools.partial(objective.loss.loss, options=objective.options)


def keys_of_losses() -> dict[str, tuple[str, ...]]:
    """Every key that a loss has in ``[objective]``, with the names of the losses that have it; the most common ones first.

    Raises:
        ValueError: if two losses mean different things by a key.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, loss in OBJECTIVES.items():
        for key, field in loss.options.model_fields.items():
            others = found.get(key, ())
            if others and repr(OBJECTIVES[others[0]].options.model_fields[key]) != repr(field):
                raise ValueError(f"the losses '{others[0]}' and '{name}' mean different things by 'objective.{key}'")
            found[key] = (*others, name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
