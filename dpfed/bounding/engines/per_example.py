"""Gradients of many examples at once, clipped and added up: the loop around ``torch.func.vmap(grad)``.

An example is what is clipped for itself: a group, a record, or one view of a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpfed.bounding.bounded_sum import Clip, add_weighted, clip_factors
from dpfed.models.parameters import TrainableVector, exact_type

# Of unclipped gradients at a time. Little on CPUs: small chunks stay in the cache, and groups are padded less.
_CPU_BYTES, _DEVICE_BYTES = 1 << 25, 1 << 29


class PerExampleGradients:
    """Clips each example's gradient and adds it up, a chunk of examples at a time.

    Args:
        vector: the model's trainable parameters.
        loss: a module whose ``model`` is the model. Its forward takes the inputs of one example and returns its loss, a scalar.
            torch.func must be able to trace it: no data-dependent branches, no in-place tricks.
        gradient_bytes: memory for the unclipped gradients of a chunk; ``None``: a default for the device. Frozen parameters
            count, too: what they are adapted by is merged into them for each example.

    Attributes:
        chunk: examples at a time.
    """

    def __init__(self, vector: TrainableVector, loss: nn.Module, gradient_bytes: int | None = None) -> None:
        self._vector = vector
        self._exact = exact_type(vector.device)
        gradient_bytes = gradient_bytes or (_CPU_BYTES if vector.device.type == "cpu" else _DEVICE_BYTES)
        model = loss.get_submodule("model")
        self.chunk = max(1, gradient_bytes // (4 * sum(parameter.numel() for parameter in model.parameters())))

        def of_trainable(trainable: dict[str, Tensor], inputs: tuple[Any, ...]) -> Tensor:
            return functional_call(loss, {f"model.{name}": value for name, value in trainable.items()}, inputs)

        self._gradients = vmap(grad_and_value(of_trainable), in_dims=(None, 0), randomness="different")

    def add_clipped(
        self, chunks: Iterable[tuple[Any, ...]], clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """Adds every example's clipped gradient to a flat vector.

        Args:
            chunks: the inputs of `loss`, tensors or dictionaries of them, stacked along a first dimension over the examples.
            clip_norm: C, or another `Clip`.
            into: ``(P,)``, added to in place.
            losses: gets each chunk's losses, ``(G,)``: private.

        Returns:
            The examples' gradient norms before clipping: private.
        """
        trainable = dict(zip(self._vector.names, [p.detach() for p in self._vector.parameters], strict=True))
        sums, all_norms = self._vector.split(into), [into.new_zeros(0, dtype=self._exact)]
        for inputs in chunks:
            with sdpa_kernel(SDPBackend.MATH):  # fused attention has no batching rule
                gradients, values = self._gradients(trainable, inputs)
            flat = [gradient.reshape(len(gradient), -1) for gradient in gradients.values()]
            norms = torch.stack([torch.linalg.vector_norm(gradient, dim=1, dtype=self._exact) for gradient in flat])
            norms = torch.linalg.vector_norm(norms, dim=0)
            for total, gradient in zip(sums, flat, strict=True):
                add_weighted(gradient, clip_factors(norms, clip_norm), total.view(-1))
            all_norms.append(norms)
            if losses is not None:
                losses.append(values.detach().to(self._exact))
        return torch.cat(all_norms)
