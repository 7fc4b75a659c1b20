"""Clipped gradients of single records (or single views), given how the loss slopes in their embeddings.

A method that releases noisy statistics computes, from embeddings and statistics, the slope of its loss in every embedding. What
is left is one backward pass per record: with J_i the Jacobian of record i's embeddings in the parameters and u_i the slope,
its gradient is J_i^T u_i. Shapes: n records, two views each (two images, or image and text), D dimensions, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import Clip
from dpfed.bounding.engines.engine import Engine, GroupBatch, Precision, Views
from dpfed.bounding.engines.per_example import PerExampleGradients
from dpfed.bounding.whole_batch.gradient_cache import EmbeddingPasses
from dpfed.models.contract import embeddings_of, temperature_of


@dataclass(frozen=True)
class Cotangents:
    """How a loss slopes in what the model gives.

    Attributes:
        embeddings: ``(n, 2, D)``.
        temperature: ``(n,)``, each record's part.
    """

    embeddings: Tensor
    temperature: Tensor

    def of_view(self, view: int) -> Cotangents:
        """Those of one view alone; the temperature's are halved."""
        alone = torch.zeros_like(self.embeddings)
        alone[:, view] = self.embeddings[:, view]
        return Cotangents(alone, self.temperature / 2)


class Statistics(Protocol):
    """Releases noisy statistics of a batch, and says how each record's loss slopes given them."""

    def slopes(self, embeddings: Tensor, temperature: Tensor, step: int) -> Cotangents:
        """One step's release.

        Args:
            embeddings: ``(n, 2, D)``, of all records of the batch.
            temperature: scalar.
            step: training step, which names the noise.
        """


def pair_of_views(views: Views) -> Views:
    """The two views of each record that are contrasted: the first two images, or the first image and the first text."""
    if "text" in views:
        return {name: view[:, :1] for name, view in views.items()}
    return {"image": views["image"][:, :2]}


class WeightedEmbeddings(nn.Module):
    """What one record's gradient is the gradient of: its pair of embeddings and the temperature, weighted by the cotangents."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.model = model
        self._device = next(model.parameters()).device.type
        self._bf16 = precision == "bf16"

    def forward(self, views: Views, embeddings: Tensor, temperature: Tensor) -> Tensor:
        """A scalar.

        Args:
            views: of one record, without a dimension over records; see `pair_of_views`.
            embeddings: ``(2, D)`` cotangents of its embeddings.
            temperature: that of the temperature, a scalar.
        """
        one = {name: view[None] for name, view in views.items()}
        with torch.autocast(self._device, torch.bfloat16, enabled=self._bf16):
            found = embeddings_of(self.model, one)
        pair = torch.cat([z.float() for z in found.values()], dim=1)
        return (pair[0] * embeddings).sum() + temperature_of(self.model) * temperature


class StatisticsEngine(Engine):
    """The engine of a method that releases noisy statistics of the whole batch.

    Args:
        model: see `PerExampleGradients`; it must draw no random numbers, as records are embedded twice.
        precision: of the forward pass.
        microbatch: records that are embedded at a time.
        statistics: the method's release.
        by_view: each view's gradient is clipped for itself; otherwise each record's.
        gradient_bytes: see `PerExampleGradients`.
    """

    name = "statistics"

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        microbatch: int,
        statistics: Statistics,
        by_view: bool = False,
        gradient_bytes: int | None = None,
    ) -> None:
        super().__init__(model)
        self._model, self._statistics, self._by_view = model, statistics, by_view
        self._passes = EmbeddingPasses(model, precision, microbatch)
        self._gradients = PerExampleGradients(self._vector, WeightedEmbeddings(model, precision), gradient_bytes)

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """Adds the clipped gradient of every record (or view); all of the step's records must come at once.

        Args:
            batch: the whole batch, as one group; views beyond the contrasted pair are not used.
            clip_norm: C.
            into: ``(P,)``, added to in place.
            losses: stays as it is: a record's gradient is not that of a loss of its own.

        Returns:
            Gradient norms before clipping: private.
        """
        views = pair_of_views(batch.views)
        embeddings = torch.cat(list(self._passes.embed(views).values()), dim=1)
        slopes = self._statistics.slopes(embeddings, temperature_of(self._model).detach(), batch.step)
        parts = [slopes.of_view(0), slopes.of_view(1)] if self._by_view else [slopes]
        return torch.cat([self._gradients.add_clipped(self._chunks(views, part), clip_norm, into) for part in parts])

    def _chunks(self, views: Views, slopes: Cotangents) -> Iterator[tuple[Views, Tensor, Tensor]]:
        """What `WeightedEmbeddings` takes, for some records after the other."""
        for start in range(0, len(slopes.embeddings), self._gradients.chunk):
            part = slice(start, start + self._gradients.chunk)
            yield {name: view[part] for name, view in views.items()}, slopes.embeddings[part], slopes.temperature[part]
