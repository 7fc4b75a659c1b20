"""Losses of one group of records. Each loss has a file of its own, and its keys are in the section ``[objective]``.

An entry point of the group ``dpfed.losses`` announces a loss, and refers to an `Objective`. ``dpfed/entry_points.txt`` has the
entry points of dpfed's losses. Other packages can announce further losses.
"""

from __future__ import annotations

import copy
from typing import Annotated, Any

from pydantic import Field, ValidationError, create_model, field_validator, model_validator

from dpfed import discovery
from dpfed.errors import UserError
from dpfed.objectives.objective import GroupLoss, Objective
from dpfed.objectives.of_groups import loss_of
from dpfed.objectives.own import own_objective
from dpfed.schema.conditions import When, only
from dpfed.schema.named import Arguments, is_name
from dpfed.schema.section import Section
from dpfed.schema.wording import complaint

__all__ = ["FOREIGN", "OBJECTIVES", "GroupLoss", "Objective", "ObjectiveConfig", "keys_of_losses", "loss_of"]


def _found() -> dict[str, Objective]:
    shipped: dict[str, Objective] = {name: part.load() for name, part in discovery.shipped("losses").items()}
    for name, part in FOREIGN.items():
        loss = part.load()
        if name in shipped or not isinstance(loss, Objective):
            problem = (
                "dpfed has a loss of that name" if name in shipped else f"expected an Objective, got {type(loss).__name__}"
            )
            raise UserError(
                f"the loss {part.said} cannot be used: {problem}. Correct the package, or uninstall it. [loss-foreign]"
            )
        shipped[name] = loss
    return shipped


FOREIGN: dict[str, discovery.Announced] = discovery.announced("losses")
OBJECTIVES: dict[str, Objective] = _found()
_OWN = When("objective.name", lambda objective: objective.is_own, "set objective.name = 'package.module:Loss'")


def keys_of_losses() -> dict[str, tuple[str, ...]]:
    """Returns the keys of all losses in ``[objective]``, each with the names of the losses that have this key.

    Keys that more losses share are listed earlier.

    Raises:
        ValueError: If two losses declare a key differently.
    """
    by_key: dict[str, tuple[str, ...]] = {}
    for name, loss in OBJECTIVES.items():
        for key, field in loss.options.model_fields.items():
            others = by_key.get(key, ())
            if others and repr(OBJECTIVES[others[0]].options.model_fields[key]) != repr(field):
                raise ValueError(
                    f"the losses '{others[0]}' and '{name}' declare the key 'objective.{key}' differently: rename one key"
                )
            by_key[key] = (*others, name)
    return dict(sorted(by_key.items(), key=lambda item: -len(item[1])))


def _keys_of_losses() -> Any:
    """Builds a section with the keys of all losses; each description begins with the names of the losses that have the key."""
    fields: dict[str, Any] = {}
    for key, losses in keys_of_losses().items():
        field = copy.copy(OBJECTIVES[losses[0]].options.model_fields[key])
        field.description = f"{' and '.join(losses)}: {field.description}"
        fields[key] = (Annotated[field.annotation, only("objective.name", *losses)], field)
    titles = "; ".join(f"{name}: {loss.title}" for name, loss in OBJECTIVES.items())
    titles += "; or 'package.module:function', a loss of one group"
    fields["options"] = (Annotated[Arguments, _OWN], Field({}, description="arguments of the class that objective.name names"))
    return create_model("KeysOfLosses", __base__=Section, name=(str, Field("infonce", description=titles)), **fields)


class ObjectiveConfig(_keys_of_losses()):  # type: ignore[misc]  # its keys are those of all losses
    """Section ``[objective]``: the loss of one group of records, and its options."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in OBJECTIVES and not is_name(name):
            raise ValueError(f"expected one of {', '.join(OBJECTIVES)}, or a name such as my_package.losses:decoupled")
        return name

    @model_validator(mode="after")
    def _fits(self) -> ObjectiveConfig:
        try:
            self.loss_options  # noqa: B018 raises for inconsistent values
        except ValidationError as error:
            raise ValueError(complaint(error)) from None
        return self

    @property
    def loss(self) -> Objective:
        """The `Objective` that `name` selects, or a placeholder if `is_own` is true; see `own_objective`."""
        return own_objective(self.name) if self.is_own else OBJECTIVES[self.name]

    @property
    def is_own(self) -> bool:
        """Whether `name` has the form ``package.module:object``, as ``dpfed.losses:DCL`` and a user's own losses do."""
        return is_name(self.name)

    @property
    def loss_options(self) -> Section:
        """The values of the configuration keys that the loss declares."""
        kind = self.loss.options
        return kind(**{key: getattr(self, key) for key in kind.model_fields})

    def group_loss(self, public: int = 0, centring: float = 0.0) -> GroupLoss:
        """Returns a function that computes the loss of one group with these options; see `loss_of` for the arguments."""
        return loss_of(self.loss, self.loss_options, public, centring)
