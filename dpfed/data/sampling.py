"""The draw of a step: which records take part, and in which group. Poisson sampling with independent group draws.

Both draws are functions of the record's own key (`Randomness.per_record`), so adding or removing a record changes no other
record's part. Where units are protected, they are functions of the unit's key: equal for all of its records, which therefore
take part together and in one group. Shuffling a sampled batch and cutting it into chunks would not do: one record more pushes
another record into the next chunk, two groups change, and the sum can move by 4C instead of 2C.

This module also gives the rows of a store that belong to one rank, derived on demand from the store's memory-mapped numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfed.data.record_set import RecordSet
from dpfed.data.store.counting import no_units
from dpfed.data.store.index import blocks
from dpfed.privacy.geometric_skips import RowMask
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import Unit
from dpfed.privacy.randomness import Randomness


@dataclass(frozen=True)
class StepDraw:
    """The records of one step, ordered by group.

    Attributes:
        indices: Indices of the store, ``(n,)`` int64; the members of a group are adjacent.
        offsets: Offsets of the groups, ``(G + 1,)`` int64; group g is ``indices[offsets[g]:offsets[g + 1]]``. Empty groups are
            left out.
        keys: Key of the record (or unit) that makes each group, ``(G,)`` uint64; ``None``: groups are drawn.
    """

    indices: np.ndarray
    offsets: np.ndarray
    keys: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def members(self, group: int) -> np.ndarray:
        """Returns the rows of one group."""
        return self.between(group, group + 1)

    def between(self, first: int, end: int) -> np.ndarray:
        """Returns the rows of the groups from `first` to `end` - 1."""
        return self.indices[self.offsets[first] : self.offsets[end]]

    def microbatches(self, records: int) -> list[tuple[int, int]]:
        """Cuts the groups into runs of about `records` records; a group is never divided.

        Returns:
            The ranges of groups, ``[(first, end), ...]``, in order.
        """
        cuts, first = [], 0
        for group in range(1, len(self) + 1):
            if group == len(self) or self.offsets[group + 1] - self.offsets[first] > records:
                cuts.append((first, group))
                first = group
        return cuts


def unit_keys(store: RecordSet, unit: Unit) -> np.ndarray | None:
    """Returns the unit of every record if units are protected, otherwise ``None``.

    Args:
        store: Records.
        unit: Privacy unit.

    Returns:
        The units' keys, ``(N,)`` uint64, by index in the store; equal for records that share a unit.

    Raises:
        UserError: If units are to be protected and the records name none.
    """
    if unit == "record":
        return None
    if store.units is None:
        raise no_units(store.name)
    return store.units


def protected_count(store: RecordSet, unit: Unit) -> int:
    """Returns N of a store's training split: the number of its records, or of its units where units are protected.

    Raises:
        UserError: See `unit_keys`.
    """
    units = None if unit_keys(store, unit) is None else store.training_units
    return store.training_records if units is None else units


def partition_keys(store: RecordSet, unit: Unit) -> np.ndarray:
    """Returns the keys that decide the rank of every record, see `dpfed.training.worker.indices_of_rank`.

    The key is a function of the record's own key, or of its unit's, so that a protected unit has one rank.

    Returns:
        The keys, ``(N,)`` uint64, by index in the store.

    Raises:
        UserError: See `unit_keys`.
    """
    units = unit_keys(store, unit)
    return store.keys if units is None else units


def participants_of(
    plan: PrivacyPlan, randomness: Randomness, keys: np.ndarray, units: np.ndarray | None = None, mask: RowMask | None = None
) -> Callable[[int], np.ndarray]:
    """Returns the participants of a step as a function of the step: positions among some records, ascending.

    Args:
        plan: Plan with the sampler.
        randomness: Source of all draws.
        keys: Keys of the records that the worker holds or has open, ``(n,)`` uint64.
        units: Keys of the records' units, see `draw_step`.
        mask: Mask of the records that the worker holds; ``None``: all.
    """
    return plan.mechanism.sampler.participants(randomness, keys if units is None else units, mask)


def draw_step(
    plan: PrivacyPlan,
    randomness: Randomness,
    step: int,
    indices: np.ndarray | None,
    keys: np.ndarray,
    groups: int,
    units: np.ndarray | None = None,
    participants: Callable[[int], np.ndarray] | None = None,
    rank: int = 0,
    world_size: int = 1,
    by_size: bool = True,
) -> StepDraw:
    """Draws the records of one step and their groups.

    Args:
        plan: Plan with the sampler and the caps.
        randomness: Source of all draws.
        step: Training step.
        indices: Indices of the records that the worker holds, ``(n,)`` int64; ``None``: 0 .. n - 1.
        keys: Keys of those records, ``(n,)`` uint64.
        groups: Number of groups to choose from: K_w, or all K where several workers on the same records divide the groups.
        units: Keys of the records' units, ``(n,)`` uint64; ``None`` if records are protected individually.
        participants: Result of `participants_of` for these records, which caches draws for later steps; default: a new one.
        rank: Rank of the worker, 0 .. world_size - 1.
        world_size: Number of workers that divide the groups.
        by_size: Whether groups are divided by their sizes (`dealt`), so that workers have about equally many records. Then a
            further record may move other groups to other workers, so their sums must be exact. Otherwise group g belongs to
            rank g modulo `world_size`.

    Returns:
        The drawn records by group; possibly none at all. All records of one unit are in one group. Where the method puts
        every record in a group of its own, no two records (or units) share a group.
    """
    if groups == 0:
        return StepDraw(np.zeros(0, np.int64), np.zeros(1, np.int64))
    protected, alone = keys if units is None else units, plan.bounding.method.singleton_groups
    drawn = (participants or participants_of(plan, randomness, keys, units))(step)
    if alone:
        _, group = np.unique(protected[drawn], return_inverse=True)
    else:
        uniforms = randomness.per_record("sample", step, protected[drawn], 2)[:, 1]
        group = np.minimum((uniforms * groups).astype(np.int64), groups - 1)
        if world_size > 1:
            sizes = np.minimum(np.bincount(group, minlength=groups), plan.bounding.cap or len(group))
            owners = dealt(sizes, world_size) if by_size else np.arange(groups) % world_size
            mine = owners[group] == rank
            drawn, group = drawn[mine], group[mine]
    if units is not None:
        _, unit = np.unique(units[drawn], return_inverse=True)
        kept = _least(unit, randomness.per_record("unit", step, keys[drawn], 1)[:, 0], plan.sampling.per_unit)
        drawn, group = drawn[kept], group[kept]
    # Within a group, members stand in the order of their keys: a function of the group's own members only.
    order = np.lexsort((keys[drawn], group))
    drawn, group = drawn[order], group[order]
    if plan.bounding.cap is not None:
        kept = _least(group, randomness.per_record("cap", step, keys[drawn], 1)[:, 0], plan.bounding.cap)
        drawn, group = drawn[kept], group[kept]
    offsets = np.flatnonzero(np.diff(group, prepend=-1))
    made_by = protected[drawn[offsets]] if alone else None
    return StepDraw(drawn if indices is None else indices[drawn], np.append(offsets, len(drawn)).astype(np.int64), made_by)


def dealt(sizes: np.ndarray, world_size: int) -> np.ndarray:
    """Deals groups to workers by size: the largest ones first, from the first worker to the last one and back.

    Each worker gets as many groups as if group g went to rank g modulo W.

    Args:
        sizes: Sizes of all groups, ``(K,)`` int64.
        world_size: Number of workers.

    Returns:
        The rank of each group, ``(K,)`` int64.
    """
    ranks = np.empty(len(sizes), np.int64)
    turn = np.arange(len(sizes))
    fro = (turn // world_size % 2 == 1) & (turn < len(sizes) // world_size * world_size)
    place = turn % world_size
    ranks[np.argsort(-sizes, kind="stable")] = np.where(fro, world_size - 1 - place, place)
    return ranks


def _least(number: np.ndarray, priority: np.ndarray, most: int) -> np.ndarray:
    """Keeps the `most` members of lowest random priority in each group (or unit): a function of that group's members only.

    Args:
        number: Number of each member's group (or unit), ``(n,)``, from 0.
        priority: Priority of each member, ``(n,)``.
        most: Number of members to keep.

    Returns:
        Positions of the kept members, ascending.
    """
    by_priority = np.lexsort((priority, number))
    ordered = number[by_priority]
    first = np.maximum.accumulate(np.where(np.diff(ordered, prepend=-1) != 0, np.arange(len(ordered)), 0))
    kept = by_priority[np.arange(len(ordered)) - first < most]
    return np.sort(kept)


class PartitionRows:
    """The training records of one of several ranks, as rows of the store. Nothing is copied, and nothing is read beforehand.

    Args:
        store: Record store that the worker opened.
        keys: Keys that decide the rank, ``(N,)``, by row: `dpfed.data.sampling.partition_keys`.
        rank: Rank, 0 .. world_size - 1.
        world_size: Number of ranks.
    """

    def __init__(self, store: RecordSet, keys: np.ndarray, rank: int = 0, world_size: int = 1) -> None:
        self._store = store
        self._keys = keys
        self._rank = rank
        self._world_size = world_size

    def __call__(self, first: int, end: int) -> np.ndarray:
        """Returns which rows from `first` to `end` - 1 belong to this rank, ``(end - first,)`` bool."""
        training = self._store.splits[first:end] == 0
        if self._world_size == 1:
            return training
        return training & (self._keys[first:end] % np.uint64(self._world_size) == self._rank)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns all rows of this rank, ``(n,)`` int64, ascending."""
        rows = [first + np.flatnonzero(self(first, end)) for first, end in blocks(len(self._store))]
        return np.asarray(np.concatenate(rows) if rows else np.zeros(0, np.int64), dtype)
