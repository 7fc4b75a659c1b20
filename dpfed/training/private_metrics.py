"""Computes training curves and the adaptive clipping threshold from the released statistics of the groups.

Both are functions of noisy sums, so they cost no further privacy. The threshold follows a quantile of the L2 norms of the
groups' gradients (Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping"): it grows if too few norms are
below it. With adaptive clipping the threshold is the clip norm of the next step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from dpfed.privacy.group_statistics import BELOW, LOSS, WITHIN
from dpfed.privacy.metrics_window import MetricsWindow
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.plan_checks import CLIP_NORMS
from dpfed.training.post_processing import PostProcessor

_NORMAL = 1.96  # half width of a 95 % interval, in standard deviations
_RATE, _FIRST_RATE = 0.2, 1.0  # change of log(threshold) if the share is off by 1: lasting part, and part that fades over steps
_CALM = 0.25  # standard error of a step's share above which the threshold moves more slowly
_FARTHEST = 20  # largest distance of the threshold from its start, in powers of two


class PrivateMetrics(PostProcessor):
    """The post-processor that turns the released statistics of each step into curves and the adaptive threshold.

    Args:
        plan: Plan that releases statistics.
        noise_std: Standard deviation of the noise on each number of the released sum; default: the plan's.
    """

    name = "progress"

    def __init__(self, plan: PrivacyPlan, noise_std: float | None = None) -> None:
        assert plan.statistics is not None  # otherwise no metrics are released
        self._bounding, self._steps, self._statistics = plan.bounding, plan.steps, plan.statistics
        self._noise_std = plan.noise_std if noise_std is None else noise_std
        count = len(self._statistics.names)
        self._state = {
            "threshold": torch.tensor(plan.bounding.clip_norm, dtype=torch.float64),
            "totals": torch.zeros(count, dtype=torch.float64),  # sums of the statistics over the window so far
            "logs": torch.zeros(2, dtype=torch.float64),  # number of steps in the window, and sum of the threshold's logarithms
        }

    @property
    def threshold(self) -> float:
        """L2 norm with which the next step compares the norms of the groups' gradients."""
        return self._state["threshold"].item()

    def gradient(self, step: int, gradient: Tensor) -> Tensor:
        """See `PostProcessor`. Adaptive clipping scales sums by clip norm / threshold; this method undoes the scaling."""
        return gradient * (self.threshold / self._bounding.clip_norm) if self._bounding.clipping == "adaptive" else gradient

    def take(self, step: int, released: Tensor | None) -> MetricsWindow | None:
        """Adds a step to the current window, and moves the threshold.

        Args:
            step: Step, 0 .. T - 1.
            released: Noisy statistics of the sum, shape ``(m,)``; ``None``: the step was discarded.

        Returns:
            The figures of the window that ends with this step; ``None`` if no window ends here, or if all its steps were
            discarded.
        """
        state = self._state
        if released is not None:
            means = released.double().cpu() / (self._statistics.unit * self._statistics.groups)
            state["totals"] += means
            state["logs"] += torch.tensor([1.0, math.log(self.threshold)], dtype=torch.float64)
            below = 0.5 + means[self._statistics.names.index(BELOW)].item()
            state["threshold"].fill_(self._moved(step, below - self._statistics.progress.quantile))
        last, length = step + 1, self._statistics.phase
        if last % length and last < self._steps:
            return None
        window = self._window(first=step - step % length + 1, last=last)
        state["totals"].zero_()
        state["logs"].zero_()
        return window

    def _moved(self, step: int, too_many: float) -> float:
        rate = _RATE + _FIRST_RATE / math.sqrt(1 + step)
        rate *= min(1.0, _CALM / self._statistics.error(self._noise_std))
        start, farthest = self._bounding.clip_norm, 2.0**_FARTHEST
        # A threshold that gradients are clipped to stays at or above the least permitted clip norm, or its start if lower.
        least = max(start / farthest, min(start, CLIP_NORMS[0])) if self._bounding.clipping == "adaptive" else start / farthest
        moved = self.threshold * math.exp(-max(-1.0, min(1.0, rate * too_many)))
        return float(torch.tensor(min(max(moved, least), start * farthest), dtype=torch.float32))

    def _window(self, first: int, last: int) -> MetricsWindow | None:
        released, logs = self._state["logs"].tolist()
        if not released:
            return None
        means = dict(zip(self._statistics.names, (0.5 + self._state["totals"] / released).tolist(), strict=True))
        error = _NORMAL * self._statistics.error(self._noise_std, int(released))
        within = means[BELOW] if self._bounding.clipping == "adaptive" else means.get(WITHIN)
        largest = self._statistics.progress.loss_range
        return MetricsWindow(
            first=first,
            last=last,
            released=int(released),
            loss=largest * means[LOSS],
            loss_error=largest * error,
            clip_rate=None if within is None else 1 - within,
            norm=math.exp(logs / released),
            quantile=self._statistics.progress.quantile,
            below=means[BELOW],
            share_error=error,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """See `PostProcessor`."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `PostProcessor`."""
        for name, value in self._state.items():
            value.copy_(state[name])
