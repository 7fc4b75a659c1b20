"""From the host's memory to a device, without a wait."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device.

    A GPU copies from pinned memory while the host continues. From other memory, the host waits until the GPU has done all work
    that was launched before.
    """
    if not copies_beside(device) or not values.numel():
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def copies_beside(device: torch.device) -> bool:
    """Whether a device copies while the host continues."""
    return device.type == "cuda"


@functools.cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Numbers as float32 on a device: they are copied once, and nobody writes to them."""
    return torch.tensor(values, device=device)
