"""Adds up the workers' sums. This is the only part of training in which deployments differ."""

from __future__ import annotations

from typing import Protocol

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.training.worker import Worker


class Transport(Protocol):
    """The interface that adds up the workers' sums, wherever the workers run."""

    def aggregate(self, step: int) -> BoundedSum | None:
        """Returns the sum over all workers' groups of one step; ``None``: the step was discarded, and is still charged."""

    def set_clip_threshold(self, threshold: float) -> None:
        """Sends all workers the L2 norm with which they compare gradients, and to which adaptive clipping clips gradients."""


class InProcess:
    """A transport for workers in the same process: one machine, or a simulation of several."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers

    def aggregate(self, step: int) -> BoundedSum:
        """See `Transport`."""
        first, *others = (worker.bounded_sum(step) for worker in self._workers)
        for other in others:
            first = first + other
        return first

    def set_clip_threshold(self, threshold: float) -> None:
        """See `Transport`."""
        for worker in self._workers:
            worker.threshold = threshold
