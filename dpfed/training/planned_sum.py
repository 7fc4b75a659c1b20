"""Checks that a sum matches the plan for which the noise is calibrated."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan


def require_planned(total: BoundedSum, step: int, plan: PrivacyPlan, size: int) -> None:
    """Rejects a sum that does not match the plan, before any noise is added to it.

    Args:
        total: Sum over all K groups.
        step: Step, 0 .. T - 1.
        plan: Privacy plan of the run.
        size: Expected number of elements of the sum.

    Raises:
        UserError: If the sum does not match; the message states what was expected.
    """
    most = plan.sensitivity_of(step)
    bare = plan.private and not total.noise_std
    if bare and (total.values.dtype != torch.int64 or total.unit != plan.grid_of().unit):
        raise UserError(
            f"step {step}: expected int64 numbers that count grid steps of size {plan.grid_of().unit:g}, got "
            f"{total.values.dtype} numbers and grid steps of size {total.unit:g}. [training-other-grid]"
        )
    if not bare and not total.values.is_floating_point():
        raise UserError(
            f"step {step}: expected floats, because the sum has its noise already or needs none, got integers; the sum was not "
            "used. [training-no-floats]"
        )
    if not total.sensitivity <= most or total.groups != plan.groups or total.values.numel() != size:
        raise UserError(
            f"step {step}: expected a sum over {plan.groups} groups and {size} numbers with sensitivity at most "
            f"{most:g}, got {total.groups} groups, {total.values.numel()} numbers and sensitivity {total.sensitivity:g}. "
            "[training-sum-unplanned]"
        )
    # Written so that NaN and infinity are refused: with either, no noise would be added here.
    if total.noise_std != 0 and not plan.promised_noise_std * (1 - 1e-9) <= total.noise_std < math.inf:
        raise UserError(
            f"step {step}: expected noise with a finite standard deviation of at least {plan.promised_noise_std:g}, for the "
            f"promised privacy, but the sites added noise of {total.noise_std:g}. The sum was not used. [training-noise-low]"
        )
    if not bare and not largest([total.values]).isfinite():
        raise UserError(
            f"step {step}: the sum over all groups is not finite; the sum was not used. If the sites add the noise, one of "
            "them sent a wrong sum. [training-sum-infinite]"
        )


def largest(tensors: Iterable[Tensor]) -> Tensor:
    """Returns the largest absolute value, a scalar on the tensors' device; infinite or NaN if any number is.

    Finding the least and the largest number is ten times as fast as testing each number.
    """
    return torch.stack([bound for values in tensors if values.numel() for bound in values.aminmax()]).abs().max()
