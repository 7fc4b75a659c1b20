"""Defines the interface of all engines, and the code that they share."""

from __future__ import annotations

import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from dpfed.bounding.clipping import Clip
from dpfed.bounding.places import aligned
from dpfed.data.transfer import to_device
from dpfed.models.contract import bias_of, embeddings_of, temperature_of
from dpfed.models.parameters import TrainableVector, exact_type
from dpfed.objectives import GroupLoss
from dpfed.objectives.classes import LABEL, first_of_class

Precision = Literal["fp32", "bf16"]
Views = dict[str, Tensor]


@dataclass(frozen=True)
class GroupBatch:
    """The views of the records of one or more groups, one group after the other.

    Attributes:
        views: Views ``{"image": (n, V, C, height, width), "text": (n, W, L)}`` of n records on the model's device: V images of
            C channels, and W texts of L tokens. For losses that read labels also ``"label": (n, 1, 1)`` int64. If the features
            of frozen towers are computed once, they replace the images, as ``(n, V, F)`` with F features for each image, and
            the texts, as ``(n, W, F_t)`` with F_t features for each text.
        offsets: Boundaries of the G groups, G + 1 row numbers; group g has the rows ``offsets[g]:offsets[g + 1]``.
        step: Training step.
    """

    views: Views
    offsets: list[int]
    step: int = 0

    @property
    def sizes(self) -> list[int]:
        """The number of records of each group."""
        return [end - first for first, end in zip(self.offsets, self.offsets[1:], strict=False)]

    def by_size(self) -> list[int]:
        """Returns the indices of the groups of at least two records, smallest first.

        A single record has nothing to contrast with.
        """
        sizes = self.sizes
        return sorted((group for group, size in enumerate(sizes) if size >= 2), key=sizes.__getitem__)

    def groups(self, start: int = 0, step: int = 1) -> Iterator[Views]:
        """Yields the views of the groups start, start + step, ..., one group at a time.

        Groups of fewer than two records are left out.
        """
        for group in range(start, len(self.offsets) - 1, step):
            first, end = self.offsets[group], self.offsets[group + 1]
            if end - first >= 2:
                yield {name: aligned(view[first:end]) for name, view in self.views.items()}

    def only(self, groups: list[int]) -> GroupBatch:
        """Returns a batch of the given groups only, in the order of `groups`."""
        ranges = [(self.offsets[group], self.offsets[group + 1]) for group in groups]
        device = next(iter(self.views.values())).device
        rows = to_device(torch.tensor([row for first, end in ranges for row in range(first, end)], dtype=torch.int64), device)
        offsets = [0, *itertools.accumulate(end - first for first, end in ranges)]
        return GroupBatch({name: view[rows] for name, view in self.views.items()}, offsets, self.step)

    def first(self, groups: int) -> GroupBatch:
        """Returns a batch of only the first `groups` groups."""
        offsets = self.offsets[: groups + 1]
        return GroupBatch({name: view[: offsets[-1]] for name, view in self.views.items()}, offsets, self.step)


class Engine(ABC):
    """Base class of engines, which compute, clip and add up the gradients of groups.

    The constructor changes settings of torch for the whole process, see `exact_arithmetic`.

    Args:
        model: Model, on its device.

    Attributes:
        name: Name in configurations and messages.
        adds_whole_parts: Whether the engine can add to integer sums, in which every group's contribution is an integer vector
            and the sum is exact.

    Raises:
        UserError: If the model has no trainable parameter.
    """

    name: ClassVar[str]
    adds_whole_parts: ClassVar[bool] = True

    def __init__(self, model: nn.Module) -> None:
        exact_arithmetic()
        self._vector = TrainableVector(model)
        self._exact = exact_type(self._vector.device)  # dtype of norms and sums

    def zeros(self) -> Tensor:
        """Returns an empty sum for `add_clipped`: a flat vector ``(P,)``, float64 where the device has it."""
        return self._vector.zeros()

    @abstractmethod
    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """Adds every group's clipped gradient to a flat vector.

        Args:
            batch: Groups to add.
            clip_norm: Norm C, or another `Clip`; in grid steps (`dpfed.privacy.sum_grid`) if the sum has integers.
            into: Flat vector ``(P,)``, which is changed in place. It comes from `zeros`, or is an int64 vector, in
                which the gradients, truncated to integers, add up exactly (`dpfed.bounding.foreach.add_`).
            losses: List to which a tensor ``(2, G)`` is appended, float64 where the device has it. This private tensor
                has the loss and the number of records of each of the G groups of at least two records. Only engines of
                methods with `Method.supports_metrics` are given a list.

        Returns:
            Gradient norms before clipping, ``(G,)``, of the groups of at least two records, in any order; private.
        """


def shared_out(figures: Tensor, losses: list[Tensor] | None) -> Tensor:
    """Returns the norms in a tensor of figures, and appends its other rows to `losses` unless that is ``None``.

    Args:
        figures: Norms, losses and numbers of records of the groups, ``(3, G)``.
        losses: List to append to, see `Engine.add_clipped`.

    Returns:
        The norms ``(G,)``.
    """
    if losses is not None:
        losses.append(figures[1:])
    return figures[0]


def exact_arithmetic() -> None:
    """Sets the libraries of a GPU to round products to 24 bits and to add up in a fixed order.

    Without this, TF32 rounds products in convolutions to 11 bits. A gradient and its norm are computed by different operations,
    so the norm could be wrong by a thousandth. Atomic additions run in another order each time, and so yield another sum.
    """
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # its backward pass in float32 adds up in no fixed order


@contextlib.contextmanager
def sound_kernels(device: str, bf16: bool) -> Iterator[None]:
    """Opens a block in which kernels read nothing but their inputs.

    In bf16, oneDNN's convolutions on CPUs read uninitialised memory. (Seen with torch 2.15: the weight gradient of a 3 x 3
    convolution with stride 2, on images of one pixel.) An earlier group may have left its numbers in this memory, so one record
    could change the gradients of other groups. Inside the block, torch's own kernels are used instead, which are slower.

    Args:
        device: Type of the model's device.
        bf16: Whether the model's passes round to bf16.
    """
    if not (bf16 and device == "cpu"):
        yield
        return
    _WITHOUT.enter()
    try:
        yield
    finally:
        _WITHOUT.leave()


class _WithoutOneDnn:
    """Switches oneDNN off while at least one thread is inside a block: torch has one switch for all threads."""

    def __init__(self) -> None:
        self._lock, self._blocks, self._before = threading.Lock(), 0, True

    def enter(self) -> None:
        with self._lock:
            if not self._blocks:
                self._before, torch.backends.mkldnn.enabled = torch.backends.mkldnn.enabled, False  # type: ignore[assignment]
            self._blocks += 1

    def leave(self) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                torch.backends.mkldnn.enabled = self._before  # type: ignore[assignment]


_WITHOUT = _WithoutOneDnn()


def draws(module: nn.Module) -> bool:
    """Returns whether a module has a dropout rate above 0, and so may draw random numbers.

    The rate is an attribute ``p``, ``drop_prob`` (timm's paths), ``prob`` (open_clip's patches) or ``dropout`` (attention).
    """
    rates = (getattr(module, name, None) for name in ("p", "drop_prob", "prob", "dropout"))
    return any(isinstance(rate, (int, float)) and rate > 0 for rate in rates)


class LossOfViews(nn.Module):
    """Model and objective as one function of a group's views, at the chosen precision.

    Attributes:
        batches: Whether `torch.func.vmap` can batch the loss of a group; a user's own loss may not support it.
    """

    def __init__(self, model: nn.Module, precision: Precision, loss: GroupLoss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self.batches: bool = getattr(loss, "batches", True)
        self._device = next(model.parameters()).device.type
        self._bf16 = precision == "bf16"

    def kernels(self) -> AbstractContextManager[None]:
        """Returns the context of `sound_kernels`, for forward and backward passes."""
        return sound_kernels(self._device, self._bf16)

    def forward(self, views: Views, present: Tensor) -> Tensor:
        """Computes the loss of one group, a scalar: the sum over its records.

        Args:
            views: Views of the group's records, see `GroupBatch`.
            present: Whether each row is a record rather than padding, ``(S,)`` bool.
        """
        return self.of(self.embed(views), present, *self.scalars())

    def embed(self, views: Views) -> dict[str, Tensor]:
        """Returns the embeddings of the views, and the labels if there are any.

        Embeddings are in float32, or in float64 if the model is.
        """
        with torch.autocast(self._device, torch.bfloat16, enabled=self._bf16):
            embeddings = embeddings_of(self.model, views)
        # Similarities, softmax and everything after them stay in float32.
        precise = {name: z if z.dtype == torch.float64 else z.float() for name, z in embeddings.items()}
        return {**precise, LABEL: views[LABEL]} if LABEL in views else precise

    def scalars(self) -> tuple[Tensor, Tensor | None]:
        """Returns the model's current temperature and bias; the bias is ``None`` if the model has none."""
        return temperature_of(self.model), bias_of(self.model)

    def of(self, embeddings: dict[str, Tensor], present: Tensor, temperature: Tensor, bias: Tensor | None) -> Tensor:
        """Computes the loss of one group from its embeddings.

        If there are labels, the loss learns from them only which records share a class.
        """
        if LABEL in embeddings:
            embeddings = {**embeddings, LABEL: first_of_class(embeddings[LABEL], present)}
        return self._loss(embeddings, present, temperature, bias)
