"""The loop. Read this first: everything else is a detail of one of its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.training.coordinator import Coordinator, StepSummary
from dpfed.training.worker import Worker


class Transport(Protocol):
    """Adds up the owners' sums, wherever the owners are."""

    def collect(self, step: int) -> BoundedSum | None:
        """The sum over all owners' groups of one step; ``None``: it came to nothing and is only paid for."""

    def tell(self, threshold: float) -> None:
        """The norm about which the next steps ask: all owners must know it (`Worker.threshold`)."""


@runtime_checkable
class Shared(Protocol):
    """A transport whose processes can hold a slice of each sum, and do the coordinator's work on it."""

    def share_out(self, coordinator: Coordinator, releases: Path) -> None:
        """Has them do so from now on, where that is possible and worth it.

        Args:
            coordinator: of the run, as a checkpoint left it.
            releases: the folder of kept releases, the same for all processes.
        """


class InProcess:
    """Owners in this very process: one machine, or the simulation of several owners."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers

    def collect(self, step: int) -> BoundedSum:
        """See `Transport`."""
        first, *others = (worker.bounded_sum(step) for worker in self._workers)
        for other in others:
            first = first + other
        return first

    def tell(self, threshold: float) -> None:
        """See `Transport`."""
        for worker in self._workers:
            worker.threshold = threshold


def train(
    transport: Transport,
    coordinator: Coordinator,
    steps: Iterable[int],
    observers: Iterable[Callable[[StepSummary], None]] = (),
) -> None:
    """Runs the private steps.

    Args:
        transport: collects the owners' sums.
        coordinator: adds the noise, pays, updates.
        steps: the steps to take, in order.
        observers: called after each step with its public summary: checkpoints, metrics, evaluation, progress.
    """
    observers = list(observers)
    for step in steps:
        summary = coordinator.replay(step)
        if summary is None:
            if coordinator.threshold is not None:
                transport.tell(coordinator.threshold)
            total = transport.collect(step)
            summary = coordinator.discard(step) if total is None else coordinator.apply(step, total)
        for observe in observers:
            observe(summary)
