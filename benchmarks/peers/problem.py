"""What all contenders compute: the sum of the groups' clipped gradients of one model on one batch.

The model is the small CNN with its projection head, at 32 px. In groups of S >= 2 the loss is dpfed's contrast between two
views of each record, inside the group. A record alone has nothing to contrast with, so at S = 1 one view of it is drawn to the
first of 16 fixed embeddings and away from the others: a loss of each record by itself, which Opacus can have, too.

Shapes: B records, S in a group, G = B / S groups, V views, D embedding dimensions, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dpfed.bounding.engines import GroupBatch, Views
from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.models.contrastive import SimCLRModel
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss

SIDE, TEMPERATURE = 32, 0.1
EMBEDDING, FIXED = 64, 16  # D, and how many fixed embeddings there are


@dataclass(frozen=True)
class Problem:
    """One cell of the comparison.

    Attributes:
        group: S.
        batch: B, a multiple of S.
        clip_norm: C.
        width: of the CNN's first stage.
    """

    group: int
    batch: int
    clip_norm: float = 1.0
    width: int = 32

    @property
    def views_of_record(self) -> int:
        """V."""
        return 1 if self.group == 1 else 2

    def model(self) -> SimCLRModel:
        """The same weights each time."""
        torch.manual_seed(0)
        config = ModelConfig(image="cnn", width=self.width, embedding=EMBEDDING)
        model = build_model(config, ObjectiveConfig(temperature=TEMPERATURE), size=SIDE)
        assert isinstance(model, SimCLRModel)
        return model

    def images(self) -> Tensor:
        """``(B, V, 3, 32, 32)`` noise, the same each time."""
        return torch.randn(self.batch, self.views_of_record, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))

    def groups(self) -> Tensor:
        """``(G, S, V, 3, 32, 32)``."""
        return self.images().view(-1, self.group, self.views_of_record, 3, SIDE, SIDE)

    def group_batch(self) -> GroupBatch:
        """The same for dpfed's engines."""
        kind = Alone if self.group == 1 else GroupBatch
        return kind({"image": self.images()}, list(range(0, self.batch + 1, self.group)))

    def loss(self) -> GroupLoss:
        """Of one group, from its embeddings."""
        return partial(alone, fixed=fixed_embeddings()) if self.group == 1 else group_loss


class Alone(GroupBatch):
    """Groups of one record, which engines leave out of a contrast: they count here, for their loss is none."""

    def by_size(self) -> list[int]:
        """See `GroupBatch`."""
        return list(range(len(self.sizes)))

    def groups(self, start: int = 0, step: int = 1) -> Iterator[Views]:
        """See `GroupBatch`."""
        for group in range(start, len(self.starts) - 1, step):
            yield {name: view[group : group + 1] for name, view in self.views.items()}

    def first(self, groups: int) -> Alone:
        """See `GroupBatch`."""
        return Alone({name: view[:groups] for name, view in self.views.items()}, self.starts[: groups + 1])


def fixed_embeddings() -> Tensor:
    """``(16, D)`` of unit length."""
    drawn = torch.randn(FIXED, EMBEDDING, generator=torch.Generator().manual_seed(2))
    return torch.nn.functional.normalize(drawn, dim=1)


def to_fixed(embeddings: Tensor, fixed: Tensor, temperature: Tensor | float) -> Tensor:
    """``(n,)`` losses of the embeddings ``(n, D)`` of records by themselves."""
    logits = embeddings @ fixed.T / temperature
    return torch.logsumexp(logits, dim=1) - logits[:, 0]


def alone(
    embeddings: dict[str, Tensor], present: Tensor, temperature: Tensor, bias: Tensor | None = None, *, fixed: Tensor
) -> Tensor:
    """The loss of a group of one record: a `GroupLoss` once it has its fixed embeddings."""
    losses = to_fixed(embeddings["image"][:, 0], fixed, temperature)
    return torch.where(present, losses, 0.0).sum()
