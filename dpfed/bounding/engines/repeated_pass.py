"""Captures a pass once, and replays it over other groups; on a GPU as a CUDA graph, which the host launches in one call.

Whatever differs from pass to pass lies in tensors at fixed addresses: the views, the offsets of groups and the clipping rule.
The model's weights keep their addresses. Replays are used only if, on random records, they give the same bits as a pass that is
not a replay.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from dpfed.bounding import foreach
from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines.batch_invariance import same, trials
from dpfed.bounding.engines.engine import GroupBatch, Views
from dpfed.bounding.engines.padding import Padding
from dpfed.bounding.layer_rules.grouping import computes_together
from dpfed.data.transfer import to_device

T = TypeVar("T")
_WARM_UP = 3  # passes before the recording, in which kernels are compiled and libraries choose their algorithms
_SCALE = 2.0**24  # grid steps of a gradient that is clipped to 1: most of its entries are then integers other than zero
_CLIPS = (Clip(_SCALE, _SCALE), Clip(1e-3 * _SCALE, 1e30, 1e-2))


class Summed(NamedTuple):
    """The result of a pass, with the sum of its clipped gradients. A pass has a fixed number of places for groups.

    Attributes:
        norms: Norm, before clipping, of the gradient of the group in each place, ``(places,)``; private.
        losses: Loss of the group in each place, ``(places,)``; private.
        total: Sum of the clipped gradients, ``(P,)``, int32; float32 in runs without privacy.
    """

    norms: Tensor
    losses: Tensor
    total: Tensor


class Recording(Protocol):
    """Recorded operations of a device, which can be replayed without the Python code that launched them."""

    def record(self, work: Callable[[], T]) -> T:
        """Runs `work`, perhaps several times, and keeps its operations; every replay overwrites the returned tensors."""

    def repeat(self) -> None:
        """Replays the recorded operations on the tensors that are now at the same addresses in memory."""


class CudaGraph:
    """Recording of operations of a GPU as a CUDA graph, see `Recording`."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def record(self, work: Callable[[], T]) -> T:
        """Runs `work` several times, and records the last run, see `Recording.record`."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(aside)
        # In the default mode, operations of other threads (which keep a release, or read images ahead) would end a recording.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            return work()

    def repeat(self) -> None:
        """Replays the recorded operations, see `Recording.repeat`."""
        self._graph.replay()


def recording_on(device: torch.device) -> Callable[[], Recording] | None:
    """Returns the class of recordings for a device; ``None`` if the device cannot replay passes."""
    return CudaGraph if computes_together(device.type) else None


class RepeatedPass:
    """A recorded pass that can be replayed over any other groups that fit into it.

    Args:
        recording: Recording that keeps the pass.
        summed: Function that makes a pass from the views of `Padding.room` records, the offsets of groups, ``(places + 1,)``
            int32, and the clipping rule. It must transfer nothing between host and device.
        views: Views of any records; only their shapes and dtypes are read.
        padding: Padding of all passes.
        exact: Dtype in which norms are computed.
    """

    def __init__(
        self,
        recording: Recording,
        summed: Callable[[Views, Tensor, Clip], Summed],
        views: Views,
        padding: Padding,
        exact: torch.dtype,
    ) -> None:
        first = next(iter(views.values()))
        self._views = {name: view.new_zeros(padding.room, *view.shape[1:]) for name, view in views.items()}
        self._offsets = torch.zeros(padding.groups + 1, dtype=torch.int32, device=first.device)
        self._clip = torch.ones(3, dtype=exact, device=first.device)
        self._recording = recording
        self._found = recording.record(lambda: summed(self._views, self._offsets, Clip(*self._clip.unbind())))

    def add(self, batch: GroupBatch, passes: list[list[int]], clip_norm: float | Clip, into: Tensor) -> Tensor:
        """Adds up the clipped gradients of the given groups; the host does not wait for the device between passes.

        Args:
            batch: Groups to add.
            passes: Indices of the groups of each pass.
            clip_norm: Norm C, or another `Clip`.
            into: Sum ``(P,)``, which is changed in place.

        Returns:
            Norms, losses and numbers of records of the G groups, ``(3, G)``, in the order of `passes`.
        """
        clip = Clip.of(clip_norm)
        self._clip.copy_(to_device(torch.tensor([clip.bound, clip.most, clip.stability], dtype=self._clip.dtype), into.device))
        every = [range(batch.offsets[group], batch.offsets[group + 1]) for groups in passes for group in groups]
        rows = to_device(torch.tensor([row for records in every for row in records]), into.device)
        offsets = to_device(
            torch.tensor([self._offsets_of(batch, groups) for groups in passes], dtype=torch.int32), into.device
        )
        figures, first = [into.new_zeros(3, 0, dtype=self._clip.dtype)], 0
        for groups, bounds in zip(passes, offsets, strict=True):
            count = sum(batch.sizes[group] for group in groups)
            for name, place in self._views.items():
                torch.index_select(batch.views[name], 0, rows[first : first + count], out=place[:count])
                place[count:].zero_()
            self._offsets.copy_(bounds)
            self._recording.repeat()
            norms, losses, total = self._found
            figures.append(torch.stack([norms, losses.to(norms), bounds.diff().to(norms)])[:, : len(groups)])
            foreach.add_([into], [total])
            first += count
        return torch.cat(figures, dim=1)

    def _offsets_of(self, batch: GroupBatch, groups: list[int]) -> list[int]:
        ends = [0, *itertools.accumulate(batch.sizes[group] for group in groups)]
        return ends + ends[-1:] * (len(self._offsets) - len(ends))


Add = Callable[[GroupBatch, list[list[int]], "float | Clip", Tensor], Tensor]


def first_unlike(repeated: Add, direct: Add, views: Views, padding: Padding, zeros: Tensor) -> str | None:
    """Compares replays on random records, bit by bit, with passes that are not recorded.

    Several replays follow one another, so that leftovers of an earlier replay would show.

    Args:
        repeated: The method `RepeatedPass.add`.
        direct: Function with the arguments and the result of `RepeatedPass.add`, which makes passes without a recording.
        views: Views of any records; only their shapes and dtypes are read.
        padding: Public shapes of passes.
        zeros: Empty sum ``(P,)``, in the dtype of a step's sum.

    Returns:
        Description of the first difference; ``None`` if there is none.
    """
    noise = list(trials(views, padding, padding.totals * 3))
    for number, trial in enumerate([*noise, *noise[:2]]):  # the first two again, after others
        batch = GroupBatch(trial.views, [0, *itertools.accumulate(trial.sizes)])
        groups, sums = [list(range(len(trial.sizes)))], (zeros.clone(), zeros.clone())
        clip = _CLIPS[number % 2]
        figures = [add(batch, groups, clip, into) for add, into in zip((repeated, direct), sums, strict=True)]
        if not same(*figures):
            return "a replay gave other norms or losses"
        if not same(*sums):
            return "a replay gave another sum"
    return None
