"""How the sums of several workers become one: what the deployments differ in, and nothing else."""

from __future__ import annotations

from typing import Protocol

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.training.worker import Worker


class Transport(Protocol):
    """Adds up the workers' sums, wherever the workers are."""

    def aggregate(self, step: int) -> BoundedSum | None:
        """The sum over all workers' groups of one step; ``None``: the step was discarded; it is still charged."""

    def set_clip_threshold(self, threshold: float) -> None:
        """Tells all workers the norm that the next steps clip to, and whose exceedances they count (`Worker.threshold`)."""


class InProcess:
    """Workers in this very process: one machine, or the simulation of several."""

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
