"""How much memory this process can have, and how many records a pass without gradients may hold."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_FLOAT = 4  # bytes
_BESIDE = 64  # what the layers of usual encoders put out at a time, in sizes of their input
_PART = 8  # of the memory that there is, a pass takes one such part
_MOST = 512  # records; more make no pass faster


def memory_of(device: torch.device) -> int:
    """Bytes of memory that this process can have at most, on a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if resource is not None and (addresses := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        there = min(there, addresses)
    for file in _limits():
        try:
            there = min(there, int(file.read_text()))
        except (OSError, ValueError):  # there is no such limit
            continue
    return there


def _limits() -> Iterator[Path]:
    """Files with the limits of this process's control groups, and of all groups around them.

    A container sees its own group as the root, or by its full path, of which the lower part may not be there.
    """
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:
        lines = []
    found = {("", "/"), ("memory", "/"), *((kinds, path) for _, kinds, path in (line.split(":", 2) for line in lines))}
    for kinds, path in found:
        if kinds and "memory" not in kinds.split(","):
            continue
        top, name = (_CGROUPS / "memory", "memory.limit_in_bytes") if kinds else (_CGROUPS, "memory.max")
        folder = top / path.strip("/")
        yield from (around / name for around in (folder, *folder.parents) if around.is_relative_to(top))


def records_without_gradients(shape: Sequence[int], device: torch.device | str) -> int:
    """How many records a pass without gradients holds: 512 small images, and fewer of larger ones.

    Args:
        shape: of one record, such as (C, H, W).
        device: of the pass.
    """
    each = _FLOAT * math.prod(shape) * _BESIDE
    return max(1, min(_MOST, memory_of(torch.device(device)) // _PART // max(1, each)))
