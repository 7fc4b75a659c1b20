"""What an adversary with the weights sees of a record: losses, gradients, and how alike its views are.

The adversary replays training: it makes views of the record as training would, J times over, and puts each into a group with
reference records that it knows. Shapes: n records, J draws, V image views and W texts a draw, D dimensions, L parameters that
are trained (tensors), R references.
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

DRAWS = 5  # with two views each these are the ten views of EncoderMI
REFERENCES = 31
_LEAST_NORM = 1e-12  # of a gradient, before the logarithm


@dataclass(frozen=True)
class Signals:
    """What is seen of n records. All of it is private.

    Attributes:
        losses: ``(n, J)`` of the group in which the record meets the references.
        gradients: ``(n, L)`` logarithms of the norms of the mean loss's gradient, for each trained tensor.
        similarities: between the record's own views: ``{"image-image": (n, pairs), "image-text": ..., "text-text": ...}``,
            cosines.
    """

    losses: Tensor
    gradients: Tensor
    similarities: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.losses)

    def rows(self, index: Tensor) -> Signals:
        """Those of some records."""
        similarities = {kind: values[index] for kind, values in self.similarities.items()}
        return Signals(self.losses[index], self.gradients[index], similarities)


def signals_of(
    model: nn.Module,
    loss: GroupLoss,
    records: Iterator[dict[str, Tensor]],
    references: dict[str, Tensor],
    advance: Callable[[int], None] = lambda done: None,
) -> Signals:
    """Looks at records one by one.

    A record's gradient is the one that flows through its own views; the references' embeddings stand still.

    Args:
        model: see `dpfed.models.contrastive`; it is used in evaluation mode.
        loss: of a group.
        records: of each its draws, ``{"image": (J, V, 3, H, W), "text": (J, W, L)}``, on the model's device.
        references: the same of R records, ``{"image": (R, J, V, 3, H, W), ...}``.
        advance: called with the number of records that are done.
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
            own = vmap(lambda group: loss(group, present, temperature_of(model), bias_of(model)))(groups)
            slopes = torch.autograd.grad(own.mean(), trained, allow_unused=True)
            norms = [torch.zeros((), device=own.device) if slope is None else slope.norm() for slope in slopes]
            losses.append(own.detach().cpu())
            gradients.append(torch.stack(norms).clamp(min=_LEAST_NORM).log().cpu())
            similarities.append(
                _similarities({name: normalize(z.detach().flatten(0, 1), dim=1).cpu() for name, z in embeddings.items()})
            )
            advance(done)
    return Signals(
        torch.stack(losses),
        torch.stack(gradients),
        {kind: torch.stack([own[kind] for own in similarities]) for kind in similarities[0]},
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model in evaluation mode, gradients left on, and back into the mode in which it was."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _count(views: dict[str, Tensor]) -> int:
    return len(views["image"])


def _similarities(embeddings: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cosines between all views of one record, ``{"image": (J V, D), "text": (J W, D)}`` of unit length."""
    result = {}
    for name, z in embeddings.items():
        if len(z) > 1:
            result[f"{name}-{name}"] = (z @ z.T)[*torch.triu_indices(len(z), len(z), offset=1)]
    if "text" in embeddings:
        result["image-text"] = (embeddings["image"] @ embeddings["text"].T).flatten()
    return result
