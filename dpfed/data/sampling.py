"""Who takes part in a step, and in which group: Poisson sampling with independent group draws.

Both draws are functions of the record's own key (`Randomness.per_record`), so adding or removing a record changes no other
record's part. Shuffling a sampled batch and cutting it into chunks would not do: one record more pulls another one over into
the next chunk, two groups change, and the sum can move by 4C instead of 2C.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfed.plan import PrivacyPlan
from dpfed.randomness import Randomness


@dataclass(frozen=True)
class StepDraw:
    """The records of one step, ordered by group.

    Attributes:
        rows: ``(n,)`` int64 rows of the store; the members of a group are adjacent.
        starts: ``(G + 1,)`` int64; group g is ``rows[starts[g]:starts[g + 1]]``. Empty groups are left out.
    """

    rows: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def members(self, group: int) -> np.ndarray:
        """Rows of one group."""
        return self.rows[self.starts[group] : self.starts[group + 1]]

    def microbatches(self, records: int) -> list[tuple[int, int]]:
        """Cuts the groups into runs of about `records` records; a group is never divided.

        Returns:
            ``[(first, end), ...]`` ranges of groups, in order.
        """
        cuts, first = [], 0
        for group in range(1, len(self) + 1):
            if group == len(self) or self.starts[group + 1] - self.starts[first] > records:
                cuts.append((first, group))
                first = group
        return cuts


def draw_step(
    plan: PrivacyPlan, randomness: Randomness, step: int, rows: np.ndarray, keys: np.ndarray, groups: int
) -> StepDraw:
    """Draws the records of one step and their groups.

    Args:
        plan: gives the sampling rate and the cap.
        randomness: the source of both draws.
        step: training step.
        rows: ``(n,)`` int64 rows of the records that the owner holds.
        keys: ``(n,)`` uint64 keys of those records.
        groups: K_w, the owner's number of groups (K when there is one owner).

    Returns:
        The drawn records by group; possibly none at all.
    """
    if groups == 0:
        return StepDraw(rows[:0], np.zeros(1, np.int64))
    uniforms = randomness.per_record("sample", step, keys, 2)
    drawn = np.flatnonzero(uniforms[:, 0] < plan.sampling_rate)
    group = np.minimum((uniforms[drawn, 1] * groups).astype(np.int64), groups - 1)
    # Within a group, members stand in the order of their keys: a function of the group's own members only.
    order = np.lexsort((keys[drawn], group))
    drawn, group = drawn[order], group[order]
    if plan.max_group_size is not None:
        kept = _cap(group, randomness.per_record("cap", step, keys[drawn], 1)[:, 0], plan.max_group_size)
        drawn, group = drawn[kept], group[kept]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return StepDraw(rows[drawn], np.append(starts, len(drawn)).astype(np.int64))


def _cap(group: np.ndarray, priority: np.ndarray, most: int) -> np.ndarray:
    """Keeps, in each group, the `most` members of least private priority: depends on that group's own members only."""
    by_priority = np.lexsort((priority, group))
    ordered = group[by_priority]
    first = np.maximum.accumulate(np.where(np.diff(ordered, prepend=-1) != 0, np.arange(len(ordered)), 0))
    kept = by_priority[np.arange(len(ordered)) - first < most]
    return np.sort(kept)
