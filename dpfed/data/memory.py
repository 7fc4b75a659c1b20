"""Finds out how much memory this process can have, and how many records a forward pass without gradients may hold."""

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
_BESIDE = 64  # estimated size of the activations of usual encoders at one time, in multiples of the input
_PART = 8  # a pass takes at most this fraction, 1 / 8, of the memory
_MOST = 512  # records; larger batches are no faster


def memory_of(device: torch.device) -> int:
    """Returns the largest amount of memory that this process can have on a device, bytes.

    On a GPU, it is all the memory of the GPU. Otherwise it is the host's memory, or less if a ulimit or cgroup is smaller.
    """
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
    """Yields files that may have the memory limits of this process's control groups, and of all groups around these.

    Inside a container, the files of its group are at the root, or at the group's full path. Files that are yielded need not
    exist.
    """
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:
        lines = []
    groups = {("", "/"), ("memory", "/"), *((kinds, path) for _, kinds, path in (line.split(":", 2) for line in lines))}
    for kinds, path in groups:
        if kinds and "memory" not in kinds.split(","):
            continue
        top, name = (_CGROUPS / "memory", "memory.limit_in_bytes") if kinds else (_CGROUPS, "memory.max")
        folder = top / path.strip("/")
        yield from (around / name for around in (folder, *folder.parents) if around.is_relative_to(top))


def records_without_gradients(shape: Sequence[int], device: torch.device | str) -> int:
    """Returns how many records a forward pass without gradients may hold: at most 512, fewer if they are large.

    The estimated activations of the pass fit into 1/8 of the device's memory, unless those of a single record do not: the
    result is then 1.

    Args:
        shape: Shape of one record, such as (C, H, W).
        device: Device of the forward pass.
    """
    each = _FLOAT * math.prod(shape) * _BESIDE
    return max(1, min(_MOST, memory_of(torch.device(device)) // _PART // max(1, each)))
