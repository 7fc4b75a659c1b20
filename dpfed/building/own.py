"""Collects the parts of a run that are the user's own: passed in Python, or found by the names in a configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from dpfed import discovery
from dpfed.config import Config
from dpfed.data.items.records import Records
from dpfed.data.items.views import Views
from dpfed.schema.named import is_name
from dpfed.training.optimizers import OwnOptimizer


@dataclass(frozen=True)
class OwnParts:
    """Parts of a run that are the user's own; ``None``: the part is one of dpfed's.

    Attributes:
        records: Records.
        model: Model, trained in place. (An encoder that a configuration names becomes part of a model that dpfed builds.)
        views: Random views of the records.
        loss: Loss of one group's embeddings (`dpfed.objectives.own.OwnLoss`).
        optimizer: Optimizer with its own learning rates. (If a configuration names the optimizer, the learning rates are the
            configuration's.)
    """

    records: Records | None = None
    model: nn.Module | None = None
    views: Views | None = None
    loss: Callable[..., Tensor] | None = None
    optimizer: OwnOptimizer | None = None


def own_parts(config: Config, given: OwnParts | None = None) -> OwnParts:
    """Collects the user's own parts of a run.

    Args:
        config: Configuration, which may name some parts.
        given: Parts that were passed in Python; they take precedence over the configuration's.

    Raises:
        UserError: If a name in the configuration leads to nothing, or to an object of another kind, or a call of the named
            object fails.
    """
    given = given or OwnParts()
    records, views, loss = given.records, given.views, given.loss
    if records is None and config.data.is_own:
        records = own_records(config)
    if views is None and config.views.transform is not None:
        plain = None if config.views.plain is None else discovery.named(config.views.plain, "views.plain")
        transform = discovery.object_named(config.views.transform, "views.transform", config.views.options)
        views = Views(transform, config.views.count, plain)
    if loss is None and config.objective.is_own:
        loss = discovery.object_named(config.objective.name, "objective.name", config.objective.options)
    return OwnParts(records, given.model, views, loss, given.optimizer)


def own_records(config: Config) -> Records:
    """Returns the records that a configuration names.

    Args:
        config: Configuration whose ``data.source`` is ``package.module:function``.

    Raises:
        UserError: If the name leads to nothing, the function fails, or it returns no records.
    """
    records = discovery.call_named(config.data.source, "data.source", config.data.options)
    if not isinstance(records, Records | nn.Module) and hasattr(records, "__getitem__") and hasattr(records, "__len__"):
        records = Records(records)
    if not isinstance(records, Records):
        raise discovery.other_part("data.source", config.data.source, "returns dpfed.Records", records)
    return records


def said_of_parts(config: Config, given: OwnParts) -> dict[str, str]:
    """Describes the user's own parts: name, version, and hash of the module's file.

    Args:
        config: Configuration of the run.
        given: The user's own parts.

    Returns:
        The descriptions, by the parts' keys in the configuration.
    """
    model = given.model
    encoder = getattr(model, "encoder", None) or getattr(model, "image_encoder", None) or model
    optimizer = None if given.optimizer is None else given.optimizer.make
    named = {
        "data.source": (config.data.source, given.records and given.records.source),
        "views.transform": (config.views.transform, given.views and given.views.transform),
        "model.image": (config.model.image, encoder),
        "objective.name": (config.objective.name, given.loss),
        "optimizer.name": (config.optimizer.name, optimizer),
    }
    return {key: discovery.said_of(value, name) for key, (name, value) in named.items() if is_name(name) and name is not None}
