"""Chooses the public shape of a shared pass: how many groups it can hold, how many records, and how many records per group.

A group's contribution to a sum must not depend on the groups that share its pass. A kernel may choose the order of its
additions by the shape of its input. So every pass has one of a few public shapes, which
`dpfed.bounding.engines.batch_invariance` tests on the device. If a pass has fewer records than its shape, fillers are added:
records that belong to no group.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from dpfed.bounding.clipping import BLOCK, GROUPS_OF_A_PASS, PLACES_OF_A_PASS
from dpfed.bounding.engines.engine import GroupBatch
from dpfed.bounding.layer_rules.grouping import computes_together

_TYPICAL = 16  # S, if no group size is given
_CPU_RECORDS = 32  # records of a pass, about: more no longer fit into the cache; with fewer, a sum costs more per record
_CPU_LEAST = 8  # records of the smallest pass: with fewer rows than four, a library may use other kernels
_CPU_SHAPES = 20  # largest number of shapes, for each of them is tested
_DEVICE_RECORDS = (128, 512)  # least and largest number of records of a pass on a GPU
_DEVICE_PIXELS = 512 * 3 * 32 * 32  # pixels in all views of a pass on a GPU, about
# CPUs compute exponentials of the last few entries of a tensor in another way than the others. So the losses of the groups are
# computed in tensors of whole vectors: places for groups are powers of two, and slots for records multiples of this.
_VECTOR = 16


@dataclass(frozen=True)
class Padding:
    """The shapes to which the records and groups of a pass are padded. All its numbers are public.

    Attributes:
        totals: Permitted numbers of records of a pass, fillers included, ascending.
        groups: Number of places for groups in every pass; a place holds one group or none.
        slots: Largest number of records with which a group may share a pass. A larger group has a pass of its own.
        aim: Approximate number of records that a pass gets.
        typical: S, the expected number of records of a group. It decides how a layer computes a norm.
    """

    totals: tuple[int, ...]
    groups: int
    slots: int
    aim: int
    typical: int

    @classmethod
    def on(cls, device: str, group_size: int | None = None, records: int | None = None, pixels: int = 3 * 32 * 32) -> Padding:
        """Returns the padding for groups of about S records.

        On CPUs, passes of many sizes are permitted, so that few fillers are needed. On other devices all passes have one size.

        Args:
            device: Device type: ``cpu``, ``cuda`` or ``mps``.
            group_size: S, the expected number of records of a group; default: 16.
            records: Approximate number of records of a pass; default: 32 on CPUs, whose cache is small, and elsewhere 128 to
                512, with fewer records for larger images.
            pixels: Number of pixels in all views of a record.
        """
        typical = group_size or _TYPICAL
        slots = _VECTOR * math.ceil((typical + 3 * math.sqrt(typical)) / _VECTOR)
        if device == "cpu":
            aim = records or _CPU_RECORDS
            room = max(aim + aim // 4, slots)
            step = 2 * math.ceil(room / (2 * _CPU_SHAPES))
            room = step * math.ceil(room / step)
            totals = tuple(range(step * math.ceil(_CPU_LEAST / step), room + 1, step))
            groups = min(GROUPS_OF_A_PASS, max(4, 1 << math.ceil(math.log2(2 * room / typical))))
            return cls(totals, groups, slots, aim, typical)
        least, most = _DEVICE_RECORDS
        room = max(slots, records or min(most, max(least, _DEVICE_PIXELS // pixels // 64 * 64)))
        places = PLACES_OF_A_PASS if computes_together(device) else GROUPS_OF_A_PASS
        groups = min(places, BLOCK * math.ceil((1 + 1.25 * room / typical) / BLOCK))
        return cls((room,), groups, slots, room, typical)

    @property
    def room(self) -> int:
        """Number of records in the largest pass, fillers included."""
        return self.totals[-1]

    def total(self, records: int) -> int:
        """Returns the smallest permitted size, fillers included, of a pass over `records` records."""
        return next(total for total in self.totals if total >= records)

    def passes(self, batch: GroupBatch, threads: int) -> list[list[int]]:
        """Divides groups among passes; leaves out groups of fewer than two records and of more than `slots` records.

        Args:
            batch: Groups to divide.
            threads: Number of threads, to which passes are handed in turn.

        Returns:
            Indices of the groups of each pass; no pass is empty.
        """
        sizes = batch.sizes
        order = [group for group in reversed(batch.by_size()) if sizes[group] <= self.slots]
        records = sum(sizes[group] for group in order)
        count = max(1, math.ceil(records / self.aim / threads)) * threads
        while (passes := self._divided(order, sizes, count)) is None:
            count += threads
        return [groups for groups in passes if groups]

    def _divided(self, order: list[int], sizes: list[int], count: int) -> list[list[int]] | None:
        """Assigns groups, largest first, each to the pass with the fewest records; returns ``None`` if they do not fit."""
        passes: list[list[int]] = [[] for _ in range(count)]
        least = [(0, number) for number in range(count)]
        for group in order:
            while least:
                records, number = heapq.heappop(least)
                if len(passes[number]) < self.groups and records + sizes[group] <= self.room:
                    break
                if records + sizes[group] > self.room:
                    return None
            else:
                return None
            passes[number].append(group)
            heapq.heappush(least, (records + sizes[group], number))
        return passes

    def alone(self, batch: GroupBatch) -> list[int]:
        """Returns the indices of the groups that need a pass of their own, because they have more than `slots` records."""
        return [group for group in batch.by_size() if batch.sizes[group] > self.slots]
