"""Clipped gradients of single records (or single views), given how the loss slopes in their embeddings.

A method that releases noisy statistics computes, from embeddings and statistics, the slope of its loss in every embedding. What
is left is one backward pass per record: with J_i the Jacobian of record i's embeddings in the parameters and u_i the slope,
its gradient is J_i^T u_i. Shapes: n records, two views each (two images, or image and text), D dimensions, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpfed.bounding.bounded_sum import add_weighted, clip_factors
from dpfed.bounding.engines.protocol import GroupBatch, Precision, Views
from dpfed.bounding.whole_batch.gradient_cache import EmbeddingPasses
from dpfed.models.contract import embeddings_of, temperature_of
from dpfed.models.parameters import TrainableVector, exact_type

_CPU_BYTES, _DEVICE_BYTES = 1 << 25, 1 << 29  # of unclipped gradients at a time: on CPUs they should stay in the cache


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


class PairOfEmbeddings(nn.Module):
    """A model of either kind as a function from pairs of views to pairs of embeddings."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.model = model
        self._device = next(model.parameters()).device.type
        self._bf16 = precision == "bf16"

    def forward(self, views: Views) -> tuple[Tensor, Tensor]:
        """See `pair_of_views`; gives ``(n, 2, D)`` float32 embeddings and the scalar temperature."""
        with torch.autocast(self._device, torch.bfloat16, enabled=self._bf16):
            embeddings = embeddings_of(self.model, views)
        return torch.cat([z.float() for z in embeddings.values()], dim=1), temperature_of(self.model)


class StatisticsEngine:
    """An engine (see `dpfed.bounding.engines.Engine`) of a method that releases noisy statistics of the whole batch.

    Args:
        model: must be traceable by torch.func, and draw no random numbers: records are embedded twice.
        precision: of the forward pass.
        microbatch: records that are embedded at a time.
        statistics: the method's release.
        by_view: each view's gradient is clipped for itself; otherwise each record's.
        gradient_bytes: memory for unclipped gradients; by default little on CPUs, half a gibibyte elsewhere.
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
        self._vector = TrainableVector(model)
        self._pair = PairOfEmbeddings(model, precision)
        self._passes = EmbeddingPasses(model, precision, microbatch)
        self._statistics, self._by_view = statistics, by_view
        self._exact = exact_type(self._vector.device)
        gradient_bytes = gradient_bytes or (_CPU_BYTES if self._vector.device.type == "cpu" else _DEVICE_BYTES)
        self._chunk = max(1, gradient_bytes // (4 * sum(parameter.numel() for parameter in model.parameters())))

        def loss(trainable: dict[str, Tensor], views: Views, embeddings: Tensor, temperature: Tensor) -> Tensor:
            one = {name: view[None] for name, view in views.items()}
            values = {f"model.{name}": value for name, value in trainable.items()}
            z, own_temperature = functional_call(self._pair, values, (one,))
            return (z[0] * embeddings).sum() + own_temperature * temperature

        self._gradients = vmap(grad(loss), in_dims=(None, 0, 0, 0), randomness="different")

    def zeros(self) -> Tensor:
        """See `Engine`."""
        return self._vector.zeros()

    def finish(self, into: Tensor) -> Tensor:
        """See `Engine`."""
        return into

    def add_clipped(self, batch: GroupBatch, clip_norm: float, into: Tensor) -> Tensor:
        """Adds the clipped gradient of every record (or view); all of the step's records must come at once.

        Args:
            batch: the whole batch, as one group; views beyond the contrasted pair are not used.
            clip_norm: C.
            into: ``(P,)``, added to in place.

        Returns:
            Gradient norms before clipping: private.
        """
        views = pair_of_views(batch.views)
        embeddings = torch.cat(list(self._passes.embed(views).values()), dim=1)
        slopes = self._statistics.slopes(embeddings, temperature_of(self._pair.model).detach(), batch.step)
        parts = [slopes.of_view(0), slopes.of_view(1)] if self._by_view else [slopes]
        return torch.cat([self._add(views, part, clip_norm, into) for part in parts])

    def _add(self, views: Views, slopes: Cotangents, clip_norm: float, into: Tensor) -> Tensor:
        trainable = dict(zip(self._vector.names, [p.detach() for p in self._vector.parameters], strict=True))
        sums, every = self._vector.split(into), []
        for start in range(0, len(slopes.embeddings), self._chunk):
            part = slice(start, start + self._chunk)
            chosen = {name: view[part] for name, view in views.items()}
            with sdpa_kernel(SDPBackend.MATH):  # fused attention has no batching rule
                gradients = self._gradients(trainable, chosen, slopes.embeddings[part], slopes.temperature[part])
            flat = [gradient.reshape(len(gradient), -1) for gradient in gradients.values()]
            norms = torch.stack([torch.linalg.vector_norm(gradient, dim=1, dtype=self._exact) for gradient in flat])
            norms = torch.linalg.vector_norm(norms, dim=0)
            for total, gradient in zip(sums, flat, strict=True):
                add_weighted(gradient, clip_factors(norms, clip_norm), total.view(-1))
            every.append(norms)
        return torch.cat(every)
