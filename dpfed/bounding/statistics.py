"""The groups' figures as numbers that are added up beside their gradients (`dpfed.privacy.group_statistics`)."""

from __future__ import annotations

import torch
from torch import Tensor

from dpfed.privacy.group_statistics import BELOW, LOSS, GroupStatistics

# Over so much of a norm's logarithm a figure goes from one side of a threshold to the other: from 5 % below it to 5 % above. A
# hard step would not do: others who share a group's pass change the last bits of its norm, and so could carry it over the step.
_WIDTH = 0.1


def sum_of_statistics(
    statistics: GroupStatistics, norms: Tensor, losses: Tensor, threshold: float, clip_norm: float, public: int = 0
) -> Tensor:
    """What some groups add to the sum beside their gradients.

    A figure that is not a number counts as one end of its range: whatever the groups are, each moves the sum within its box.

    Args:
        statistics: which figures.
        norms: ``(G,)`` of the groups' gradients, before clipping.
        losses: ``(2, G)`` the groups' losses and numbers of records, in any order.
        threshold: that follows a quantile of the norms.
        clip_norm: C.
        public: so many of a group's records are public, and have no loss of their own.

    Returns:
        ``(m,)``, one number for each of `GroupStatistics.names`.
    """
    loss, records = losses
    figures = {LOSS: loss / (records - public) / statistics.progress.loss_range - 0.5, BELOW: _side(norms, threshold)}
    rows = [figures[name] if name in figures else _side(norms, clip_norm) for name in statistics.names]
    return statistics.unit * torch.stack([row.nan_to_num(0.5, 0.5, -0.5).clamp(-0.5, 0.5).sum() for row in rows])


def _side(norms: Tensor, threshold: float) -> Tensor:
    """1/2 for norms well below a threshold, -1/2 for those well above it, and on a line between."""
    logs = torch.log(norms / threshold)
    return torch.where(torch.isnan(logs), -0.5, -logs / _WIDTH)
