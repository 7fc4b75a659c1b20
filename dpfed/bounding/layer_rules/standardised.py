"""Standardised weights (Qiao et al. 2019): a layer uses a kernel of mean 0 and variance 1, and the plain kernel is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpfed.bounding.layer_rules.term import Target

if TYPE_CHECKING:
    from dpfed.bounding.layer_rules.recorder import Recorder


@dataclass(frozen=True)
class StandardisedWeight:
    """A kernel that was computed from a trained one: every output's weights minus their mean, over their deviation.

    Attributes:
        plain: where the trained kernel's gradient goes, in the shape ``(1, O, d)``.
        weight: ``(1, O, d)`` the standardised kernel.
        inverse: ``(1, O, 1)`` one over the standard deviation of each output's weights.
    """

    plain: Target
    weight: Tensor
    inverse: Tensor

    def pulled_back(self, gradient: Tensor) -> Tensor:
        """The gradient of the plain kernel, ``(..., 1, O, d)``, from that of the standardised one, ``(..., O, C, kH, kW)``."""
        g = gradient.flatten(-3).unsqueeze(-3)
        along = (g * self.weight).mean(-1, keepdim=True)
        return self.inverse * (g - g.mean(-1, keepdim=True) - self.weight * along)


def standardise(
    recorder: Recorder,
    func: Callable,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """``F.batch_norm`` of a kernel ``(1, O, d)``, as timm standardises weights; of records it would mix them."""
    given = (running_mean, running_var, weight, bias)
    plain = recorder.target(input)
    if plain is None or not training or input.dim() != 3 or len(input) > 1 or any(value is not None for value in given):
        return NotImplemented
    kernel = input.detach()
    standardised = func(kernel, None, None, training=True, momentum=momentum, eps=eps)
    inverse = torch.rsqrt(kernel.var(-1, correction=0, keepdim=True) + eps)
    return recorder.watch(standardised, StandardisedWeight(plain, standardised, inverse))
