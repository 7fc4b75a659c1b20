"""How parameters and sums become bytes: little-endian, nothing around them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpfed.federation.protocol.fixed_point import Grid
from dpfed.federation.protocol.packets import Content
from dpfed.federation.protocol.terms import Terms


def encoded(values: Tensor, form: str = "fp32") -> bytes:
    """The bytes of a flat float32 vector, in ``fp32`` or rounded to ``bf16``."""
    values = values.detach().cpu()
    if form == "bf16":
        return values.bfloat16().view(torch.int16).numpy().astype("<i2", copy=False).tobytes()
    return values.numpy().astype("<f4", copy=False).tobytes()


def decoded(content: Content, form: str = "fp32") -> Tensor:
    """The vector of `encoded`: flat, float32.

    Raises:
        ValueError: if the bytes are not whole numbers of it.
    """
    if form == "bf16":
        return torch.from_numpy(np.frombuffer(content, "<i2").astype(np.int16)).view(torch.bfloat16).float()
    return torch.from_numpy(np.frombuffer(content, "<f4").astype(np.float32))


def grid_of(terms: Terms) -> Grid:
    """The fixed-point grid on which secure sums are added up."""
    plan, trust = terms.privacy_plan, terms.trust_model
    return Grid.for_sums(plan.longest_sum, trust.carried_std(plan, trust.sites), trust.share_std(plan))
