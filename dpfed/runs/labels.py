"""Finds the label that a loss reads; refuses a loss whose label the records lack, or to which the method passes no labels."""

from __future__ import annotations

from dpfed.config import Config
from dpfed.data.record_set import RecordSet
from dpfed.errors import UserError
from dpfed.objectives import GroupLoss
from dpfed.objectives.own import OwnLoss
from dpfed.privacy.method import method_named


def label_of(config: Config, loss: GroupLoss, records: RecordSet) -> str | None:
    """Returns the name of the label that the loss reads; ``None``: the loss reads no label.

    Args:
        config: Configuration of the run.
        loss: Loss of one group.
        records: Records of the run.

    Raises:
        UserError: If the loss reads a label, and the records have no labels, lack the chosen label, or have several labels of
            which none is chosen; if the method passes no labels to a loss; or if the loss compares only images by their
            labels, although the model reads captions as well.
    """
    if isinstance(loss, OwnLoss):
        reads, wanted = loss.reads_labels, getattr(loss.function, "label", None)
        name, key = getattr(loss.function, "__name__", type(loss.function).__name__), "the loss's attribute 'label'"
    else:
        reads, wanted = config.objective.loss.reads_labels, config.objective.label
        name, key = f"'{config.objective.name}'", "objective.label"
    if not reads:
        return None
    if not isinstance(loss, OwnLoss) and config.objective.loss.images_only and config.model.reads_text:
        raise UserError(
            f"the loss {name} compares only images, but this model reads text, too: take a model of images alone (model.kind = "
            "'image'), or another loss. [loss-labels-text]"
        )
    method = method_named(config.bounding.method)
    if not method.picks_engine or method.public_records:
        raise UserError(
            f"the loss {name} reads labels, but bounding.method = '{method.name}' passes no labels to a loss: set "
            "bounding.method = 'group'. [loss-labels-method]"
        )
    there = sorted(records.labels)
    if not there:
        raise UserError(
            f"the loss {name} compares records by their class, but {records.name} has no labels: give Records(label=...), or "
            "import records with labels. [loss-labels-none]"
        )
    if wanted is None and len(there) == 1:
        return there[0]
    if wanted not in there:
        said = "does not say which label it reads" if wanted is None else f"reads the label {wanted!r}"
        raise UserError(
            f"the loss {name} {said}, and {records.name} has the labels {', '.join(there)}: set {key} to one of them. "
            "[loss-labels-which]"
        )
    return wanted
