"""Groups side by side, by torch.func."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpfed.bounding.bounded_sum import add_weighted, clip_factors
from dpfed.bounding.engines.protocol import GroupBatch, LossOfViews, Precision, Views, require_fp32
from dpfed.models.norm import refuse_mixing
from dpfed.models.parameters import TrainableVector, exact_type
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss


class VmapEngine:
    """All groups of a chunk at once through ``torch.func.vmap(grad)``; groups are padded to the chunk's largest.

    Args:
        model: must be traceable by torch.func (no data-dependent branches, no in-place tricks).
        precision: of the forward pass; "fp32", see `require_fp32`.
        loss: of one group.
        gradient_bytes: memory for the unclipped gradients of a chunk; sets how many groups a chunk has. By default little on
            CPUs, where small chunks stay in the cache and are padded less, and half a gibibyte elsewhere. Frozen parameters
            count, too: what they are adapted by is merged into them for each group.

    Attributes:
        chunk: groups at a time.
    """

    name = "vmap"

    def __init__(
        self,
        model: nn.Module,
        precision: Precision = "fp32",
        loss: GroupLoss = group_loss,
        gradient_bytes: int | None = None,
    ) -> None:
        refuse_mixing(model, "bounding.engine = 'vmap'")
        require_fp32(self.name, precision)
        self._vector = TrainableVector(model)
        self._exact = exact_type(self._vector.device)
        gradient_bytes = gradient_bytes or (1 << 25 if self._vector.device.type == "cpu" else 1 << 29)
        self.chunk = max(1, gradient_bytes // (4 * sum(parameter.numel() for parameter in model.parameters())))
        whole = LossOfViews(model, precision, loss)

        def of_trainable(trainable: dict[str, Tensor], views: Views, present: Tensor) -> Tensor:
            return functional_call(whole, {f"model.{name}": value for name, value in trainable.items()}, (views, present))

        self._gradients = vmap(grad(of_trainable), in_dims=(None, 0, 0), randomness="different")

    def add_clipped(self, batch: GroupBatch, clip_norm: float, into: Tensor) -> Tensor:
        """See `Engine`."""
        sizes = [end - first for first, end in zip(batch.starts, batch.starts[1:], strict=False)]
        # Alike sizes share a chunk, so that little is padded.
        order = sorted((g for g, size in enumerate(sizes) if size >= 2), key=lambda g: sizes[g])
        trainable = dict(zip(self._vector.names, [p.detach() for p in self._vector.parameters], strict=True))
        all_norms = [into.new_zeros(0, dtype=self._exact)]
        for start in range(0, len(order), self.chunk):
            chosen = order[start : start + self.chunk]
            views, present = _pad(batch, chosen, sizes)
            with sdpa_kernel(SDPBackend.MATH):  # fused attention has no batching rule
                gradients = list(self._gradients(trainable, views, present).values())
            flat = [gradient.reshape(len(gradient), -1) for gradient in gradients]
            norms = torch.stack([torch.linalg.vector_norm(part, dim=1, dtype=self._exact) for part in flat])
            norms = torch.linalg.vector_norm(norms, dim=0)
            for part, gradient in zip(self._vector.split(into), flat, strict=True):
                add_weighted(gradient, clip_factors(norms, clip_norm), part.view(-1))
            all_norms.append(norms)
        return torch.cat(all_norms)

    def zeros(self) -> Tensor:
        """See `Engine`."""
        return self._vector.zeros()

    def finish(self, into: Tensor) -> Tensor:
        """See `Engine`."""
        return into


def _pad(batch: GroupBatch, chosen: list[int], sizes: list[int]) -> tuple[Views, Tensor]:
    longest = max(sizes[g] for g in chosen)
    device = next(iter(batch.views.values())).device
    slots = torch.arange(longest)
    counts = torch.tensor([sizes[g] for g in chosen])[:, None]
    first = torch.tensor([batch.starts[g] for g in chosen])[:, None]
    present = (slots < counts).to(device)
    # Padding repeats the group's first record: finite values that the mask then hides.
    rows = torch.where(slots < counts, first + slots, first).to(device)
    return {name: view[rows] for name, view in batch.views.items()}, present
