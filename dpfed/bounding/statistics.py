"""The groups' figures as numbers that are added up beside their gradients (`dpfed.privacy.group_statistics`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpfed.privacy.group_statistics import BELOW, LOSS, GroupStatistics

# Over so much of a norm's logarithm a figure goes from one side of a threshold to the other: from 5 % below it to 5 % above.
_WIDTH = 0.1


def sum_of_statistics(
    statistics: GroupStatistics, norms: Tensor, losses: Tensor, threshold: float, clip_norm: float, unit: float, public: int = 0
) -> Tensor:
    """What some groups add to the sum beside their gradients: whole numbers, each of one group alone.

    A figure that is not a number counts as one end of its range: whatever the groups are, each moves the sum within its box.

    Args:
        statistics: which figures.
        norms: ``(G,)`` of the groups' gradients, before clipping.
        losses: ``(2, G)`` the groups' losses and numbers of records, in any order.
        threshold: that follows a quantile of the norms.
        clip_norm: C.
        unit: what a step of the sum's grid stands for.
        public: so many of a group's records are public, and have no loss of their own.

    Returns:
        ``(m,)`` int64 on the CPU, one number for each of `GroupStatistics.names`.
    """
    # One after the other, in Python: a vectorised logarithm may give other bits at another place.
    every_loss = [loss / (records - public) / statistics.progress.loss_range - 0.5 for loss, records in losses.T.tolist()]
    figures = {LOSS: every_loss, BELOW: _sides(norms, threshold)}
    range_in_steps = statistics.unit / unit
    rows = [figures[name] if name in figures else _sides(norms, clip_norm) for name in statistics.names]
    return torch.tensor([sum(int(range_in_steps * _within(figure)) for figure in row) for row in rows])


def _within(figure: float) -> float:
    return 0.5 if math.isnan(figure) else min(0.5, max(-0.5, figure))


def _sides(norms: Tensor, threshold: float) -> list[float]:
    """1/2 for norms well below a threshold, -1/2 for those well above it, and on a line between."""
    return [_side(norm / threshold) for norm in norms.tolist()]


def _side(ratio: float) -> float:
    if math.isnan(ratio):
        return -0.5
    return -math.log(ratio) / _WIDTH if ratio > 0 else 0.5
