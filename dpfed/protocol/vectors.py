"""How parameters and sums become bytes: little-endian, nothing around them."""

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
    """The bytes of a flat vector: of whole numbers, 8 for each; of float32, in ``fp32`` or rounded to ``bf16``."""
    values = values.detach().cpu()
    if values.dtype == torch.int64:
        return values.numpy().astype("<i8", copy=False).tobytes()
    if form == "bf16":
        return values.bfloat16().view(torch.int16).numpy().astype("<i2", copy=False).tobytes()
    return values.numpy().astype("<f4", copy=False).tobytes()


def decoded(content: Content, form: str = "fp32") -> Tensor:
    """The vector of `encoded`: flat, float32; int64 of the form ``int64``.

    Raises:
        ValueError: if the bytes are not whole numbers of it.
    """
    if form == "int64":
        return torch.from_numpy(np.frombuffer(content, "<i8").astype(np.int64))
    if form == "bf16":
        return torch.from_numpy(np.frombuffer(content, "<i2").astype(np.int16)).view(torch.bfloat16).float()
    return torch.from_numpy(np.frombuffer(content, "<f4").astype(np.float32))


def form_of_sums(terms: Terms) -> str:
    """How sites send their sums, where there is no `grid_of`: ``int64`` before the noise, for then they are exact."""
    return "int64" if terms.trust == "central" and terms.privacy_plan.private else "fp32"


def grid_of(terms: Terms) -> Grid | None:
    """The fixed-point grid on which sums travel; ``None``: they travel as numbers, see `form_of_sums`.

    Secure sums do, and shares of discrete noise, of which nothing but the exact sum is proven to be such noise again.
    """
    plan, trust = terms.privacy_plan, terms.trust_model
    noise = trust.noise_of_site(plan)
    if noise is None or not trust.shared or (terms.trust != "secure" and not isinstance(noise, DiscreteGaussianNoise)):
        return None
    return Grid.for_sums(plan.longest_sum, trust.carried_std(plan, trust.sites), noise.std, noise.step_length)


def protected(values: Tensor, step: int, noise: KeyedNoise, grid: Grid | None) -> np.ndarray:
    """A site's sum with its noise, as it travels: float32, or elements of the ring where there is a grid.

    Args:
        values: ``(P,)`` int64, on the CPU, in steps of the plan's grid.
        step: training step.
        noise: the site's own.
        grid: of the terms, see `grid_of`.
    """
    if grid is None:
        return noise.noisy(values, step).numpy()
    return grid.encode_steps(noise.steps(values, step).numpy())


def sum_of(contents: Sequence[Content], grid: Grid | None, form: str) -> Tensor:
    """The sum of what sites sent, in this order: flat, float32 or int64.

    Args:
        contents: of the sites.
        grid: see `grid_of`.
        form: see `form_of_sums`.
    """
    if grid is None:
        first, *others = (decoded(content, form) for content in contents)
        for other in others:
            first += other
        return first
    return torch.from_numpy(grid.decode(sum((_ring(content) for content in contents[1:]), _ring(contents[0]))))


def _ring(content: Content) -> np.ndarray:
    return np.frombuffer(content, "<u4").astype(np.uint32)
