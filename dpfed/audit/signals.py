"""Signals, by which an adversary who has the weights tells whether a record was trained on: losses, gradients, similarities.

The adversary replays training: it draws views of the record J times as training would, and puts each draw into a group with
reference records that it knows. Shapes: n records, J draws, V image views (size x size pixels) and W texts of L tokens in a
draw, D dimensions, G trained parameter tensors, R references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import normalize

from dpfed.models.contract import bias_of, temperature_of
from dpfed.objectives import GroupLoss

DRAWS = 5  # with two views in each draw, these are the ten views of EncoderMI
REFERENCES = 31  # R: with the record, a group of 32
_LEAST_NORM = 1e-12  # least norm of a gradient, before the logarithm


@dataclass(frozen=True)
class Signals:
    """The signals of n records. All fields are private.

    Attributes:
        losses: Losses of the group that the record and the references form, in each draw, ``(n, J)``.
        gradients: Logarithms of the norms of the mean loss's gradient with respect to each of the G trained parameter tensors,
            ``(n, G)``.
        similarities: Cosines between the record's own views: ``{"image-image": (n, pairs), "image-text": ...,
            "text-text": ...}``; the last two only for a model that reads captions.
    """

    losses: Tensor
    gradients: Tensor
    similarities: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.losses)

    def rows(self, index: Tensor) -> Signals:
        """Returns the signals of the records that `index` selects: row numbers, or a mask ``(n,)`` bool."""
        similarities = {kind: values[index] for kind, values in self.similarities.items()}
        return Signals(self.losses[index], self.gradients[index], similarities)


def signals_of(
    model: nn.Module,
    loss: GroupLoss,
    records: Iterator[dict[str, Tensor]],
    references: dict[str, Tensor],
    advance: Callable[[int], None] = lambda done: None,
) -> Signals:
    """Computes the signals of records one by one.

    The gradient flows through the record's own views only; the references' embeddings are constants.

    Args:
        model: Model, see `dpfed.models.contrastive`; it is used in evaluation mode.
        loss: Loss of a group.
        records: Views of one record after another, in J draws each: ``{"image": (J, V, 3, size, size), "text": (J, W, L)}``, V
            views of the image and W texts of L tokens, on the model's device. ``"text"`` is absent without captions.
        references: Views of R references, in J draws each, ``{"image": (R, J, V, 3, size, size), "text": (R, J, W, L)}``.
        advance: Function that is called with the number of completed records.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses, gradients, similarities = [], [], []
    with evaluating(model):
        with torch.no_grad():
            drawn = [model({name: view[index] for name, view in references.items()}) for index in range(_count(references))]
        # (J, R, V, D): the references of each draw.
        known = {name: torch.stack([z[name] for z in drawn], 1) for name in drawn[0]}
        present = torch.ones(1 + _count(references), dtype=torch.bool, device=trained[0].device)
        for done, views in enumerate(records, 1):
            embeddings = model(views)
            groups = {name: torch.cat([z[:, None], known[name]], 1) for name, z in embeddings.items()}
            group_losses = vmap(lambda group: loss(group, present, temperature_of(model), bias_of(model)))(groups)
            slopes = torch.autograd.grad(group_losses.mean(), trained, allow_unused=True)
            norms = [torch.zeros((), device=group_losses.device) if slope is None else slope.norm() for slope in slopes]
            losses.append(group_losses.detach().cpu())
            gradients.append(torch.stack(norms).clamp(min=_LEAST_NORM).log().cpu())
            similarities.append(
                _similarities({name: normalize(z.detach().flatten(0, 1), dim=1).cpu() for name, z in embeddings.items()})
            )
            advance(done)
    return Signals(
        torch.stack(losses),
        torch.stack(gradients),
        {kind: torch.stack([cosines[kind] for cosines in similarities]) for kind in similarities[0]},
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, and restores its mode at the end; this does not disable gradients."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _count(views: dict[str, Tensor]) -> int:
    return len(views["image"])


def _similarities(embeddings: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the cosines between all views of one record, from embeddings of unit length.

    Args:
        embeddings: Embeddings of the views, ``{"image": (J V, D), "text": (J W, D)}``.
    """
    result = {}
    for name, z in embeddings.items():
        if len(z) > 1:
            result[f"{name}-{name}"] = (z @ z.T)[*torch.triu_indices(len(z), len(z), offset=1)]
    if "text" in embeddings:
        result["image-text"] = (embeddings["image"] @ embeddings["text"].T).flatten()
    return result
