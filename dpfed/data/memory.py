"""How much memory this process can have, and how many records a pass without gradients may hold."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch

_CGROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_FLOAT = 4  # bytes
_BESIDE = 64  # what the layers of usual encoders put out at a time, in sizes of their input
_PART = 8  # of the memory that there is, a pass takes one such part
_MOST = 512  # records; more make no pass faster


def memory_of(device: torch.device) -> int:
    """Bytes of memory that this process can have at most, on a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _CGROUP:
        try:
            there = min(there, int(file.read_text()))
        except (OSError, ValueError):  # there is no such limit
            continue
    return there


def records_without_gradients(shape: Sequence[int], device: torch.device | str) -> int:
    """How many records a pass without gradients holds: 512 small images, and fewer of larger ones.

    Args:
        shape: of one record, such as (C, H, W).
        device: of the pass.
    """
    each = _FLOAT * math.prod(shape) * _BESIDE
    return max(1, min(_MOST, memory_of(torch.device(device)) // _PART // max(1, each)))
