"""Makes one forward and one backward pass over many groups, and adds up the groups' clipped gradients.

A `Term` holds the gradients of all groups with respect to one parameter. A pass has a fixed number of places for groups; a
place may be empty.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from dpfed.bounding.clipping import Clip, clip_factors
from dpfed.bounding.engines.engine import LossOfViews, Views
from dpfed.bounding.layer_rules.grouping import Grouping, Unsupported
from dpfed.bounding.layer_rules.recorder import Recorder, Source
from dpfed.bounding.layer_rules.row_sums import side_by_side
from dpfed.bounding.layer_rules.rules import RULES
from dpfed.bounding.layer_rules.term import Materialised, Target, Term
from dpfed.bounding.places import same_at_all_places
from dpfed.models.parameters import TrainableVector, exact_type

Sources = list[tuple[Tensor, Source]]


@dataclass(frozen=True)
class PassInputs:
    """Inputs that all passes of a step share.

    Attributes:
        sources: Tensors that layers read: trainable parameters, or weights that were computed from them. Each comes with the
            destination of its gradient.
        scalars: Current temperature and bias of the model.
        names: Names of the trainable parameters.
        at_places: Whether the pass must run inside `dpfed.bounding.places.same_at_all_places`, so that a product's bits do not
            depend on a record's position.
    """

    sources: Sources
    scalars: list[Scalar]
    names: list[str]
    at_places: bool = False

    @classmethod
    def of(cls, loss: LossOfViews, vector: TrainableVector, sources: Sources, at_places: bool = False) -> PassInputs:
        """Returns the inputs of a model's passes at its current weights.

        Args:
            loss: Model and objective.
            vector: Trainable parameters.
            sources: Tensors that layers read, each with the destination of its gradient.
            at_places: Whether the pass must run inside `dpfed.bounding.places.same_at_all_places`, so that a product's bits do
                not depend on a record's position.
        """
        return cls(sources, [Scalar(vector, scalar) for scalar in loss.scalars()], vector.names, at_places)


class Scalar:
    """The model's temperature or bias, which is a function of parameters; every group gets its own copy of the value."""

    def __init__(self, vector: TrainableVector, value: Tensor | None) -> None:
        self._value = None if value is None else value.detach()
        self._slopes: list[tuple[Target, Tensor]] = []
        if value is not None and value.requires_grad:
            slopes = torch.autograd.grad(value, vector.parameters, allow_unused=True)
            self._slopes = [(Target(i), slope) for i, slope in enumerate(slopes) if slope is not None]

    def of_groups(self, places: int) -> Tensor | None:
        """Returns copies of the value, one for each place for a group; ``None`` if the model does not have this scalar."""
        return None if self._value is None else self._value.repeat(places).requires_grad_(bool(self._slopes))

    def terms(self, values: Tensor | None, grouping: Grouping) -> list[Term]:
        """Returns each group's gradient with respect to the parameters that determine the scalar, as terms.

        Args:
            values: Result of `of_groups`, after the backward pass.
            grouping: Grouping of the records.
        """
        if values is None or values.grad is None:
            return []
        gradients = values.grad
        if grouping.batched:
            return [
                Materialised(target, gradients.view(-1, *[1] * slope.dim()) * slope, grouping) for target, slope in self._slopes
            ]
        by_group = gradients[: grouping.count].unbind()
        return [Materialised(target, [value * slope for value in by_group], grouping) for target, slope in self._slopes]


def terms_of(loss: LossOfViews, views: Views, grouping: Grouping, inputs: PassInputs) -> tuple[list[Term], Tensor]:
    """Makes one forward and one backward pass over groups, and returns their gradients as terms.

    Args:
        loss: Model and objective.
        views: Views of the records of all groups, and of fillers.
        grouping: Grouping of the records.
        inputs: Inputs that all passes share.

    Returns:
        The terms of all trainable parameters, and the losses ``(G,)`` of the G groups.

    Raises:
        Unsupported: If the rules do not cover the model: for example, a trainable parameter is used twice, or takes no part in
            the loss.
    """
    with same_at_all_places() if inputs.at_places else contextlib.nullcontext():
        return _run_pass(loss, views, grouping, inputs)


def _run_pass(loss: LossOfViews, views: Views, grouping: Grouping, inputs: PassInputs) -> tuple[list[Term], Tensor]:
    with Recorder(RULES, inputs.sources, grouping) as recorder:
        embeddings = loss.embed(views)
    by_group = {name: grouping.by_place(z) for name, z in embeddings.items()}
    scalars = [scalar.of_groups(grouping.places) for scalar in inputs.scalars]
    temperature, bias = scalars
    assert temperature is not None  # only the bias may be missing
    losses = _losses(loss, by_group, grouping, temperature, bias)
    if grouping.batched:  # an empty place has no loss, whatever the objective returns for it
        losses = losses.where(grouping.is_group[: grouping.count], 0.0)
    losses.sum().backward()
    terms = list(recorder.terms)
    for scalar, values in zip(inputs.scalars, scalars, strict=True):
        terms.extend(scalar.terms(values, grouping))
    _check_once(terms, inputs.names)
    return side_by_side(terms), losses.detach()


def _losses(loss: LossOfViews, by_group: Views, grouping: Grouping, temperature: Tensor, bias: Tensor | None) -> Tensor:
    """Computes the loss of each group, ``(G,)``; a loss that cannot be batched is called for one group after the other."""
    if loss.batches:
        in_dims = (0, 0, 0, None if bias is None else 0)
        return vmap(loss.of, in_dims)(by_group, grouping.present, temperature, bias)[: grouping.count]
    losses = []
    for group, is_there in enumerate(grouping.is_group[: grouping.count].tolist()):
        rows = {name: z[group] for name, z in by_group.items()}
        given = rows, grouping.present[group], temperature[group], None if bias is None else bias[group]
        losses.append(loss.of(*given) if is_there else next(iter(rows.values())).sum() * 0.0)
    return torch.stack(losses)


def _check_once(terms: list[Term], names: list[str]) -> None:
    """Raises `Unsupported` unless each parameter has one term, or one for each of its parts."""
    seen = {(term.target.parameter, term.target.part) for term in terms}
    if len(seen) < len(terms):
        raise Unsupported("a trainable parameter is used more than once [layer-used-twice]")
    if missing := set(range(len(names))) - {parameter for parameter, _ in seen}:
        raise Unsupported(f"'{names[min(missing)]}' takes no part in the loss [layer-not-in-loss]")


def check_rows(loss: LossOfViews, views: Views, sources: Sources, device: torch.device) -> None:
    """Rejects layers whose output has no batch dimension, such as a table of parameters.

    By chance, such a table may have as many rows as there are records. Two passes over blank records, with one record and with
    two, show which layers have equally many rows in both.

    Args:
        loss: Model and objective.
        views: Views of any records; only their shapes and dtypes are read.
        sources: Tensors that layers read, see `PassInputs`.
        device: Device of the model.

    Raises:
        Unsupported: If a layer does not have twice as many rows for two records as for one, or no rule covers the use of a
            trainable parameter.
    """
    rows: list[list[int]] = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for records in (1, 2):
            with Recorder(RULES, sources, Grouping([records], device, exact_type(device))) as recorder:
                loss.embed({name: view.new_zeros(records, *view.shape[1:]) for name, view in views.items()})
            rows.append(recorder.rows)
    if rows[1] != [2 * number for number in rows[0]]:
        raise Unsupported("the first dimension of a layer is not the batch dimension [layer-rows-differ]")


@torch.no_grad()
def add_up(terms: list[Term], clip_norm: float | Clip, grouping: Grouping, parts: list[Tensor]) -> Tensor:
    """Clips each group's gradient, and adds up the clipped gradients.

    Args:
        terms: Terms of all trainable parameters.
        clip_norm: Norm C, or another `Clip`.
        grouping: Grouping of the records.
        parts: Views of the sum, one for each trainable parameter, which are changed in place.

    Returns:
        Norms before clipping, ``(G,)``.
    """
    squares = torch.stack([term.squares for term in terms])
    missing = (0, grouping.places - grouping.count)
    total = F.pad(squares, missing).sum(0)
    slack = sum((F.pad(term.slack, missing) for term in terms if isinstance(term.slack, Tensor)), total * 0.0)
    factors = clip_factors((total + slack).sqrt(), clip_norm).float().where(grouping.is_group, 0.0)
    for term in terms:
        term.add_weighted(factors, parts)
    return total.sqrt()[: grouping.count]
