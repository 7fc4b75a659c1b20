"""Clipped group gradients: two engines behind one interface, and the choice between them.

An engine takes the views of some groups and adds every group's gradient, clipped to norm C, into one flat float32 vector. The
loop is the oracle and wins on CPUs; the vectorised engine wins where small groups are bound by kernel launches. Shapes: G
groups of up to S records, P trainable parameters.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpfed.bounding.bounded_sum import clip_factors
from dpfed.models.parameters import TrainableVector
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss

Precision = Literal["fp32", "bf16"]
Views = dict[str, Tensor]
_SLOW = 1.0  # seconds for a few groups, from where on engines are compared on these few only


@dataclass(frozen=True)
class GroupBatch:
    """The views of the records of some groups, one group after the other.

    Attributes:
        views: ``{"image": (n, V, 3, H, W), "text": (n, W, L)}`` on the model's device.
        starts: G + 1 offsets; group g is rows ``starts[g]:starts[g + 1]``.
    """

    views: Views
    starts: list[int]

    def first(self, groups: int) -> GroupBatch:
        """The first groups alone."""
        starts = self.starts[: groups + 1]
        return GroupBatch({name: view[: starts[-1]] for name, view in self.views.items()}, starts)


class Engine(Protocol):
    """Adds clipped group gradients."""

    name: str

    def zeros(self) -> Tensor:
        """An empty sum: a flat float32 vector for `add_clipped` to add to."""

    def add_clipped(self, batch: GroupBatch, clip_norm: float, into: Tensor) -> Tensor:
        """Adds every group's clipped gradient to a flat vector.

        Args:
            batch: the groups.
            clip_norm: C.
            into: ``(P,)`` float32, added to in place.

        Returns:
            Gradient norms before clipping, of the groups that have at least two records: private.
        """

    def finish(self, into: Tensor) -> Tensor:
        """Ends a step: called once, when all groups of this owner are in.

        An engine whose passes need all workers at once goes on here until every worker is through.

        Args:
            into: what `add_clipped` added to.

        Returns:
            ``(P,)`` float32, the sum of this owner's clipped gradients.
        """


def _exact_type(device: torch.device) -> torch.dtype:
    """For norms: float32 sums over millions of squares err by a part in a thousand. mps has nothing better."""
    return torch.float32 if device.type == "mps" else torch.float64


def _draws(module: nn.Module) -> bool:
    """Whether a module may draw random numbers: dropout of units, of paths (timm), of patches (open_clip), of attention."""
    rates = (getattr(module, name, None) for name in ("p", "drop_prob", "prob", "dropout"))
    return any(isinstance(rate, (int, float)) and rate > 0 for rate in rates)


class LossOfViews(nn.Module):
    """Model and objective as one function of a group's views, at the chosen precision."""

    def __init__(self, model: nn.Module, precision: Precision, loss: GroupLoss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self._device = next(model.parameters()).device.type
        self._bf16 = precision == "bf16"

    def forward(self, views: Views, present: Tensor) -> Tensor:
        """The loss of one group.

        Args:
            views: of the group's records, see `GroupBatch`.
            present: ``(S,)`` bool, whether each is a record or padding.
        """
        with torch.autocast(self._device, torch.bfloat16, enabled=self._bf16):
            embeddings = self.model(views)
        # Similarities, softmax and everything behind them stay in float32.
        embeddings = {name: z.float() for name, z in embeddings.items()}
        return self._loss(embeddings, present, self.model.temperature, getattr(self.model, "bias", None))


class LoopEngine:
    """One forward and one backward pass per group, in as many lanes as there are cores.

    A group is too small to keep several cores busy, so each core takes groups of its own. Which lane takes which group is
    fixed, and lanes are added up in order: the sum is the same, bit for bit, in every run.
    """

    name = "loop"

    def __init__(self, model: nn.Module, precision: Precision = "fp32", loss: GroupLoss = group_loss) -> None:
        self._loss = LossOfViews(model, precision, loss)
        self._vector = TrainableVector(model)
        self._exact = _exact_type(self._vector.device)
        # Random layers draw from one generator that lanes would take turns at in no fixed order.
        random = any(_draws(module) for module in model.modules())
        lanes = 1 if random or self._vector.device.type != "cpu" else torch.get_num_threads()
        self._extra = [self._vector.zeros() for _ in range(lanes - 1)]
        self._pool = ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(1,)) if lanes > 1 else None

    def add_clipped(self, batch: GroupBatch, clip_norm: float, into: Tensor) -> Tensor:
        """See `Engine`."""
        if self._pool is None:
            return self._lane(batch, clip_norm, into, 0, 1)
        sums = [into, *(extra.zero_() for extra in self._extra)]
        lanes = [self._pool.submit(self._lane, batch, clip_norm, part, k, len(sums)) for k, part in enumerate(sums)]
        norms = torch.cat([lane.result() for lane in lanes])
        for extra in self._extra:
            into.add_(extra)
        return norms

    def zeros(self) -> Tensor:
        """See `Engine`."""
        return self._vector.zeros()

    def finish(self, into: Tensor) -> Tensor:
        """See `Engine`."""
        return into

    def _lane(self, batch: GroupBatch, clip_norm: float, into: Tensor, lane: int, lanes: int) -> Tensor:
        parts = self._vector.split(into)
        ranges = list(zip(batch.starts, batch.starts[1:], strict=False))
        norms = [into.new_zeros(0, dtype=self._exact)]
        for first, end in ranges[lane::lanes]:
            if end - first < 2:
                continue  # a group of one has nothing to contrast with: its gradient is exactly zero
            views = {name: view[first:end] for name, view in batch.views.items()}
            loss = self._loss(views, torch.ones(end - first, dtype=torch.bool, device=into.device))
            gradients = torch.autograd.grad(loss, self._vector.parameters)
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2, self._exact)))
            factor = clip_factors(norm, clip_norm).item()
            if factor > 0:  # 0 * inf is not 0: leave the gradient out altogether
                torch._foreach_add_(parts, gradients, alpha=factor)
            norms.append(norm[None])
        return torch.cat(norms)


class VmapEngine:
    """All groups of a chunk at once through ``torch.func.vmap(grad)``; groups are padded to the chunk's largest.

    Args:
        model: must be traceable by torch.func (no data-dependent branches, no in-place tricks).
        precision: of the forward pass.
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
        self._vector = TrainableVector(model)
        self._exact = _exact_type(self._vector.device)
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
            factors = clip_factors(norms, clip_norm)
            finite = torch.isfinite(norms)
            for part, gradient in zip(self._vector.split(into), flat, strict=True):
                part.view(-1).add_(factors.to(part.dtype) @ torch.where(finite[:, None], gradient, 0.0))
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


ENGINES: dict[str, type[LoopEngine] | type[VmapEngine]] = {"loop": LoopEngine, "vmap": VmapEngine}


def fastest_engine(model: nn.Module, batch: GroupBatch, precision: Precision = "fp32", loss: GroupLoss = group_loss) -> str:
    """Times each engine on a batch of stand-in views (never private ones) and names the fastest.

    Args:
        model: on its device.
        batch: groups of the shape that training will see, filled with noise; of a slow model only a few of them are used.
        precision: of the forward pass.
        loss: of one group.
    """
    into = TrainableVector(model).zeros()

    def seconds(engine: Engine, batch: GroupBatch) -> float:
        started = time.perf_counter()
        engine.add_clipped(batch, 1.0, into)
        into.sum().item()  # waits for the device
        return time.perf_counter() - started

    engines: dict[str, Engine] = {name: kind(model, precision, loss) for name, kind in ENGINES.items()}
    if engines["vmap"].chunk == 1:  # a large model: nothing is left to vectorise over
        return "loop"
    few = batch.first(2 * torch.get_num_threads())
    try:
        seconds(engines["vmap"], few)
    except RuntimeError:  # torch.func has no rule for one of the model's operations
        return "loop"
    slow = seconds(engines["loop"], few) > _SLOW
    best = dict.fromkeys(engines, math.inf)
    for _ in range(1 if slow else 3):
        for name, engine in engines.items():  # in turns, so that a busy moment of the machine meets both
            best[name] = min(best[name], seconds(engine, few if slow else batch))
    return min(best, key=best.__getitem__)
