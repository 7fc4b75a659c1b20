"""Computes statistics of the groups as integers, which are added up like the gradients (`dpfed.privacy.group_statistics`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpfed.privacy.group_statistics import BELOW, LOSS, GroupStatistics

# Width, in the logarithm of the norm, of the ramp between the two sides of a threshold: from 5 % below it to 5 % above.
_WIDTH = 0.1


def sum_of_statistics(
    statistics: GroupStatistics, norms: Tensor, losses: Tensor, threshold: float, clip_norm: float, unit: float, public: int = 0
) -> Tensor:
    """Returns the sum of the given groups' statistics. Each statistic is an integer, and depends on only one group.

    A NaN counts as one end of the statistic's range. So no group changes the sum by more than this range allows.

    Args:
        statistics: Statistics to compute.
        norms: Norms ``(G,)`` of the groups' gradients before clipping.
        losses: Losses and numbers of records of the groups, ``(2, G)``, in any order.
        threshold: Threshold for the norms; during the run, the threshold follows a quantile of the norms.
        clip_norm: Clip norm, C.
        unit: Size of one grid step of the sum.
        public: Number of public records in each group; the objective has no loss for them.

    Returns:
        Sums ``(m,)`` int64 on the CPU, one for each of `GroupStatistics.names`.
    """
    # One by one, in Python: a vectorised logarithm may give different bits at another position.
    every_loss = [loss / (records - public) / statistics.progress.loss_range - 0.5 for loss, records in losses.T.tolist()]
    figures = {LOSS: every_loss, BELOW: _sides(norms, threshold)}
    range_in_steps = statistics.unit / unit
    rows = [figures[name] if name in figures else _sides(norms, clip_norm) for name in statistics.names]
    return torch.tensor([sum(int(range_in_steps * _within(figure)) for figure in row) for row in rows])


def _within(figure: float) -> float:
    return 0.5 if math.isnan(figure) else min(0.5, max(-0.5, figure))


def _sides(norms: Tensor, threshold: float) -> list[float]:
    """Returns, for each norm, a number that is positive if the norm is below the threshold, and negative if it is above.

    The number is a linear function of the norm's logarithm: 1/2 at 5 % below the threshold, and -1/2 at 5 % above. Beyond these
    values, `_within` cuts it off.
    """
    return [_side(norm / threshold) for norm in norms.tolist()]


def _side(ratio: float) -> float:
    if math.isnan(ratio):
        return -0.5
    return -math.log(ratio) / _WIDTH if ratio > 0 else 0.5
