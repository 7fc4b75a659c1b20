"""Clipped gradients of single records (or single views), given the derivative of the loss with respect to their embeddings.

A method that releases noisy statistics computes, from embeddings and statistics, the derivative of its loss with respect to
every embedding (the cotangents). One backward pass per record remains: with J_i the Jacobian of record i's embeddings with
respect to the parameters and u_i the derivative, the record's gradient is J_i^T u_i. Shapes: n records, two views each (two
images, or image and text), D dimensions, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines.engine import Engine, GroupBatch, Precision, Views, sound_kernels
from dpfed.bounding.engines.gradient_cache import refuse_random
from dpfed.bounding.engines.loop import add_clipped
from dpfed.bounding.engines.threads import Threads
from dpfed.bounding.places import aligned
from dpfed.models.contract import embeddings_of, temperature_of


@dataclass(frozen=True)
class Cotangents:
    """Derivatives of a loss with respect to the embeddings and the temperature.

    Attributes:
        embeddings: Derivatives with respect to the embeddings, ``(n, 2, D)``.
        temperature: Each record's part of the derivative with respect to the temperature, ``(n,)``.
    """

    embeddings: Tensor
    temperature: Tensor

    @classmethod
    def of_each(cls, slopes: Callable[[Tensor, int], tuple[Tensor, Tensor]], embeddings: Tensor) -> Cotangents:
        """Computes cotangents record by record.

        In a matrix product over the whole batch, a record could change the rounding of other records' cotangents.

        Args:
            slopes: Function from a record's embeddings ``(1, 2, D)`` and index to its cotangents ``(1, 2, D)`` and ``(1,)``.
            embeddings: Embeddings ``(n, 2, D)``.
        """
        slopes_of_each = [slopes(pair.detach().requires_grad_(), place) for place, pair in enumerate(embeddings.split(1))]
        none = embeddings[:0], embeddings[:0, 0, 0]
        return cls(*(torch.cat(part) for part in zip(none, *slopes_of_each, strict=True)))

    def of_view(self, view: int) -> Cotangents:
        """Returns the cotangents of one of the two views, with half of the temperature's cotangent of each record."""
        alone = torch.zeros_like(self.embeddings)
        alone[:, view] = self.embeddings[:, view]
        return Cotangents(alone, self.temperature / 2)


class Statistics(Protocol):
    """Releases noisy statistics of a batch, and computes the derivatives of each record's loss given these statistics."""

    def slopes(self, embeddings: Tensor, temperature: Tensor, step: int) -> Cotangents:
        """Makes the release of one step and returns the cotangents.

        In a sound method, every bit of a record's cotangents depends only on the release and on the record's own embeddings.

        Args:
            embeddings: Embeddings of all records of the batch, ``(n, 2, D)``.
            temperature: Temperature, a scalar.
            step: Training step, a part of the noise's key.
        """


class StatisticsEngine(Engine):
    """The engine of a method that releases noisy statistics of the whole batch.

    It embeds one record at a time, so that no record can change how the embeddings and gradients of others are rounded.

    Args:
        model: Model that draws no random numbers, because records are embedded twice.
        precision: Precision of the forward pass.
        statistics: Statistics that the method releases.
        by_view: Whether each view's gradient is clipped separately, rather than each record's.

    Raises:
        UserError: If the model draws random numbers, or has no trainable parameter.
    """

    name = "statistics"

    def __init__(self, model: nn.Module, precision: Precision, statistics: Statistics, by_view: bool = False) -> None:
        super().__init__(model)
        refuse_random(model)
        self._model, self._statistics, self._by_view = model, statistics, by_view
        self._bf16 = precision == "bf16"
        self._threads = Threads(model, self._vector)

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """Adds the clipped gradient of every record, or of every view. All records of the step must come in one call.

        Args:
            batch: The whole batch, as one group; views beyond the contrasted pair are not used.
            clip_norm: C, or another `Clip`.
            into: Flat vector ``(P,)``, added to in place.
            losses: Ignored, because the losses of single records are not kept.

        Returns:
            Gradient norms before clipping, ``(n,)``, or ``(2n,)`` if views are clipped separately; private.
        """
        with sound_kernels(self._vector.device.type, self._bf16):
            return self._added(batch, clip_norm, into)

    def _added(self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor) -> Tensor:
        embeddings = torch.cat(sum(self._threads.each(lambda thread: self._embedded(batch.views, thread)), start=[]))
        slopes = self._statistics.slopes(embeddings, temperature_of(self._model).detach(), batch.step)
        parts = [slopes.of_view(0), slopes.of_view(1)] if self._by_view else [slopes]

        def added(part: Cotangents) -> Tensor:
            return self._threads.add(lambda thread, total: self._of_thread(batch.views, part, clip_norm, thread, total), into)

        return torch.cat([added(part) for part in parts])

    def _records(self, views: Views, thread: int) -> Iterator[tuple[int, Views]]:
        """Yields a thread's records, with the two views that are contrasted: two images, or the first image and text."""
        count, wanted = len(views["image"]), 1 if "text" in views else 2
        for record in range(thread * count // self._threads.count, (thread + 1) * count // self._threads.count):
            yield record, {name: aligned(view[record : record + 1, :wanted]) for name, view in views.items()}

    def _pair(self, views: Views) -> Tensor:
        """Computes the embeddings of one record, ``(1, 2, D)``."""
        with torch.autocast(self._vector.device.type, torch.bfloat16, enabled=self._bf16):
            embeddings = embeddings_of(self._model, views)
        return torch.cat([z.float() for z in embeddings.values()], dim=1)

    @torch.no_grad()
    def _embedded(self, views: Views, thread: int) -> list[Tensor]:
        return [self._pair(record_views) for _, record_views in self._records(views, thread)]

    def _of_thread(self, views: Views, slopes: Cotangents, clip_norm: float | Clip, thread: int, into: Tensor) -> Tensor:
        """Adds the clipped gradients of a thread's records; returns the norms before clipping."""
        parts, norms = self._vector.split(into), [into.new_zeros(0, dtype=self._exact)]
        for record, record_views in self._records(views, thread):
            loss = (self._pair(record_views)[0] * slopes.embeddings[record]).sum()
            loss = loss + temperature_of(self._model) * slopes.temperature[record]
            gradients = torch.autograd.grad(loss, self._vector.parameters, materialize_grads=True)
            norms.append(add_clipped(gradients, clip_norm, parts, self._exact)[None])
        return torch.cat(norms)
