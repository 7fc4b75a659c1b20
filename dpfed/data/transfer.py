"""Copies tensors from the host's memory to a device, without waiting for the device."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Returns the values on a device.

    For a GPU, the values are first copied to pinned memory, because a GPU copies from pinned memory while the host continues.
    If it copied from other memory, the host would wait until the GPU has done all work that was launched before.
    """
    if not copies_beside(device) or not values.numel():
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def copies_beside(device: torch.device) -> bool:
    """Returns whether a device can copy from the host's memory while the host continues: only a GPU can."""
    return device.type == "cuda"


@functools.cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Returns numbers as a float32 tensor on a device. The tensor is cached, so callers must not write to it."""
    return torch.tensor(values, device=device)
