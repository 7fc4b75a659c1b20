"""Copies from the host's memory to a device without blocking."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Returns the values on a device.

    A GPU copies from pinned memory while the host continues. From other memory, the host waits until the GPU has done all work
    that was launched before.
    """
    if not copies_beside(device) or not values.numel():
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def copies_beside(device: torch.device) -> bool:
    """Returns whether a device copies while the host continues."""
    return device.type == "cuda"


@functools.cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Returns numbers as a float32 tensor on a device; it is cached, so nobody may write to it."""
    return torch.tensor(values, device=device)
