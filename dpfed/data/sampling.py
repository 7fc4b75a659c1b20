"""Draws the records that take part in a step, and their groups: Poisson sampling with independent draws of groups.

Both draws are functions of the record's own key (`Randomness.per_record`), so adding or removing a record does not change what
is drawn for any other record. Where units are protected, both draws are functions of the unit's key. They are then equal for
all records of the unit, which therefore take part together and in one group. Shuffling a sampled batch and cutting it into
chunks would not do: one more record pushes another record into the next chunk, so two groups change, and the sum can move by 4C
instead of 2C, where C is the clipping norm of a group.

This module also finds the rows of a store that belong to one rank. They are computed, when they are needed, from the splits
and keys in the store's memory-mapped index.
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
    """The n records that take part in one step, ordered by their G groups.

    Attributes:
        indices: Indices of the records in the store, ``(n,)`` int64; the members of a group are adjacent.
        offsets: Offsets of the groups, ``(G + 1,)`` int64; group g is ``indices[offsets[g]:offsets[g + 1]]``. Empty groups are
            left out.
        keys: Key of each group, ``(G,)`` uint64, if every record (or unit) forms a group of its own: the key of that record
            (or unit). ``None``: the group of each record (or unit) is drawn.
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
        """Divides the groups into ranges of at most `records` records. A group is never divided, so one group may have more.

        Args:
            records: Largest number of records in a range of several groups.

        Returns:
            The ranges, ``[(first, end), ...]``, in order: a range has the groups from `first` to `end` - 1.
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
        UserError: If units are to be protected and the records name no units.
    """
    if unit == "record":
        return None
    if store.units is None:
        raise no_units(store.name)
    return store.units


def protected_count(store: RecordSet, unit: Unit) -> int:
    """Returns N, the number of training records, or of their units where units are protected.

    Raises:
        UserError: If `unit_keys` raises one.
    """
    units = None if unit_keys(store, unit) is None else store.training_units
    return store.training_records if units is None else units


def partition_keys(store: RecordSet, unit: Unit) -> np.ndarray:
    """Returns the keys that decide to which rank every record belongs, see `dpfed.training.worker.indices_of_rank`.

    Where units are protected, they are the keys of the units, so that all records of a unit belong to one rank. Otherwise they
    are the keys of the records.

    Returns:
        The keys, ``(N,)`` uint64, by index in the store.

    Raises:
        UserError: If `unit_keys` raises one.
    """
    units = unit_keys(store, unit)
    return store.keys if units is None else units


def participants_of(
    plan: PrivacyPlan, randomness: Randomness, keys: np.ndarray, units: np.ndarray | None = None, mask: RowMask | None = None
) -> Callable[[int], np.ndarray]:
    """Returns a function that draws the participants of a step.

    Args:
        plan: Plan with the sampler.
        randomness: Source of all draws.
        keys: Keys of n records from which the function draws, ``(n,)`` uint64.
        units: Keys of the records' units, see `draw_step`.
        mask: Function that marks which of the n records the worker holds; ``None``: the worker holds all of them.

    Returns:
        A function from a step to the positions in `keys` of the records that take part in the step, ascending.
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
) -> StepDraw:
    """Draws the records of one step and their groups.

    Args:
        plan: Plan with the sampler and the caps.
        randomness: Source of all draws.
        step: Training step.
        indices: Indices of the records that the worker holds, ``(n,)`` int64; ``None``: 0 .. n - 1.
        keys: Keys of these records, ``(n,)`` uint64.
        groups: Number of groups from which the group of each record (or unit) is drawn: K_w, the number of this worker's own
            groups. If several workers on the same records divide the groups: K, the number of all groups of the plan.
        units: Keys of the records' units, ``(n,)`` uint64; ``None`` if records are protected individually.
        participants: Result of `participants_of` for these records, which caches draws for later steps; default: a new one.
        rank: Rank of the worker, 0 .. world_size - 1.
        world_size: Number of workers that divide the groups by size (`dealt`), so that workers have about equally many records.
            One more record may move other groups to other workers, so the workers' sums must be exact.

    Returns:
        The drawn records by group; possibly none at all. All records of one unit are in one group. If the plan's bounding
        method puts every record (or unit) in a group of its own, no two records (or units) share a group. A unit, and a group,
        keeps at most as many records as the plan's caps allow.
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
            mine = dealt(sizes, world_size)[group] == rank
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

    Each worker gets as many groups as if group g belonged to rank g modulo `world_size`.

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
    """Keeps at most `most` members of each group (or unit): those with the lowest priorities.

    Which members of a group are kept is a function of the members of this group only.

    Args:
        number: Number of each member's group (or unit), ``(n,)``, from 0.
        priority: Random priority of each member, ``(n,)``.
        most: Largest number of members to keep in a group.

    Returns:
        Positions of the kept members, ascending.
    """
    by_priority = np.lexsort((priority, number))
    ordered = number[by_priority]
    first = np.maximum.accumulate(np.where(np.diff(ordered, prepend=-1) != 0, np.arange(len(ordered)), 0))
    kept = by_priority[np.arange(len(ordered)) - first < most]
    return np.sort(kept)


class PartitionRows:
    """The training records of one of several ranks, as rows of the store. They are found when they are asked for.

    Args:
        store: Record store that the worker opened.
        keys: Keys that decide the rank of each row, ``(N,)``; see `partition_keys`.
        rank: Rank, 0 .. world_size - 1.
        world_size: Number of ranks.
    """

    def __init__(self, store: RecordSet, keys: np.ndarray, rank: int = 0, world_size: int = 1) -> None:
        self._store = store
        self._keys = keys
        self._rank = rank
        self._world_size = world_size

    def __call__(self, first: int, end: int) -> np.ndarray:
        """Returns whether each row from `first` to `end` - 1 is a training record of this rank, ``(end - first,)`` bool."""
        training = self._store.splits[first:end] == 0
        if self._world_size == 1:
            return training
        return training & (self._keys[first:end] % np.uint64(self._world_size) == self._rank)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns the rows of all training records of this rank, ``(n,)`` int64, ascending."""
        rows = [first + np.flatnonzero(self(first, end)) for first, end in blocks(len(self._store))]
        return np.asarray(np.concatenate(rows) if rows else np.zeros(0, np.int64), dtype)
