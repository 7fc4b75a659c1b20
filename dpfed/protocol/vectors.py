"""Serialisation of parameters and sums: little-endian numbers without a header."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpfed.privacy.noise import DiscreteGaussianNoise, KeyedNoise
from dpfed.protocol.fixed_point import Grid
from dpfed.protocol.messages import Content
from dpfed.protocol.terms import Terms


def encoded(values: Tensor, form: str = "fp32") -> bytes:
    """Serialises a flat vector.

    Args:
        values: Vector, int64 (8 bytes a number) or float32.
        form: Format of a float32 vector: ``fp32``, or ``bf16`` (rounded); default ``fp32``.
    """
    values = values.detach().cpu()
    if values.dtype == torch.int64:
        return values.numpy().astype("<i8", copy=False).tobytes()
    if form == "bf16":
        return values.bfloat16().view(torch.int16).numpy().astype("<i2", copy=False).tobytes()
    return values.numpy().astype("<f4", copy=False).tobytes()


def decoded(content: Content, form: str = "fp32") -> Tensor:
    """Parses the bytes that `encoded` returned.

    Args:
        content: Bytes of the vector.
        form: Format: ``fp32``, ``bf16`` or ``int64``; default ``fp32``.

    Returns:
        The flat vector: int64 if the format is ``int64``, otherwise float32.

    Raises:
        ValueError: If the length is not a multiple of the size of a number.
    """
    if form == "int64":
        return torch.from_numpy(np.frombuffer(content, "<i8").astype(np.int64))
    if form == "bf16":
        return torch.from_numpy(np.frombuffer(content, "<i2").astype(np.int16)).view(torch.bfloat16).float()
    return torch.from_numpy(np.frombuffer(content, "<f4").astype(np.float32))


def form_of_sums(terms: Terms) -> str:
    """Returns the format in which sites send their sums if `grid_of` gives no grid.

    The format is ``int64`` where the server adds the noise, because sums before the noise are exact integers; otherwise
    ``fp32``.
    """
    return "int64" if terms.trust == "central" and terms.privacy_plan.private else "fp32"


def grid_of(terms: Terms) -> Grid | None:
    """Returns the fixed-point grid on which sums travel; ``None``: they travel as int64 or float32 numbers (`form_of_sums`).

    Secure sums travel on a grid. So do sums in the mode ``distributed`` with discrete noise, because the sites' parts of the
    noise are proven to add up to discrete noise only if they are added exactly. In the mode ``local`` the noise of each site
    suffices by itself, so there is no grid.

    Raises:
        UserError: If one site's noise is too small for the grid, see `Grid.for_sums`.
    """
    plan, trust = terms.privacy_plan, terms.trust_model
    noise = trust.noise_of_site(plan)
    if noise is None or not trust.shared or (terms.trust != "secure" and not isinstance(noise, DiscreteGaussianNoise)):
        return None
    return Grid.for_sums(plan.longest_sum, trust.carried_std(plan, trust.sites), noise.std, noise.step_length)


def protected(values: Tensor, step: int, noise: KeyedNoise, grid: Grid | None) -> np.ndarray:
    """Adds a site's noise to its sum, and encodes the result as it travels.

    Args:
        values: Bounded sum as whole steps of the plan's own grid (not of `grid`), shape ``(P,)``, int64, on the CPU.
        step: Training step.
        noise: The site's own noise.
        grid: Grid of the terms, see `grid_of`.

    Returns:
        The noisy sum, shape ``(P,)``: float32, or uint32 ring elements if there is a grid.
    """
    if grid is None:
        return noise.noisy(values, step).numpy()
    return grid.encode_steps(noise.steps(values, step).numpy())


def sum_of(contents: Sequence[Content], grid: Grid | None, form: str) -> Tensor:
    """Adds up the sites' sums, in the given order.

    Args:
        contents: Serialised sums of the sites.
        grid: Grid of the terms, see `grid_of`.
        form: Format of the sums, see `form_of_sums`.

    Returns:
        The total, a flat vector, float32 or int64.
    """
    if grid is None:
        first, *others = (decoded(content, form) for content in contents)
        for other in others:
            first += other
        return first
    return torch.from_numpy(grid.decode(sum((_ring(content) for content in contents[1:]), _ring(contents[0]))))


def _ring(content: Content) -> np.ndarray:
    """Returns the ring elements, uint32, of a serialised sum."""
    return np.frombuffer(content, "<u4").astype(np.uint32)
