"""Which training records are held out: a choice by names alone, the same on every machine and in any order."""

from __future__ import annotations

import hashlib

import numpy as np


def hold_out_hash(unit: str, split: str) -> int:
    """What decides whether a unit is held out for a split: units with the smallest hashes are.

    Args:
        unit: name of the unit, or the id of a record that is its own unit.
        split: part of the hash's key, so that the choices for different splits are unrelated.
    """
    return int.from_bytes(hashlib.blake2b(unit.encode(), key=f"dpfed {split}".encode(), digest_size=8).digest(), "little")


def selected(hashes: np.ndarray, count: int) -> np.ndarray:
    """Selects whole units in the order of their hashes until at least `count` records are selected.

    Args:
        hashes: ``(n,)`` uint64, the hash of each record's unit.
        count: how many records.

    Returns:
        ``(n,)`` bool. Without shared units exactly `count` records are selected (all, when there are fewer).
    """
    units, sizes = np.unique(hashes, return_counts=True)
    return np.isin(hashes, units[np.cumsum(sizes) - sizes < count])
