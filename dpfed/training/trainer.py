"""The loop. Read this first: everything else is a detail of one of its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.training.coordinator import Coordinator, StepSummary
from dpfed.training.worker import Worker


class Transport(Protocol):
    """Adds up the workers' sums, wherever the workers are."""

    def aggregate(self, step: int) -> BoundedSum | None:
        """The sum over all workers' groups of one step; ``None``: the step was discarded; it is still charged."""

    def set_clip_threshold(self, threshold: float) -> None:
        """The norm about which the next steps ask: all workers must know it (`Worker.threshold`)."""


@dataclass(frozen=True)
class Observer:
    """What may write or show something of a step.

    Attributes:
        see: is called with the step's public summary, when its release is on disk and charged.
        due: whether it has anything to do with a step.
    """

    see: Callable[[StepSummary], None]
    due: Callable[[StepSummary], bool] = lambda summary: True


class InProcess:
    """Workers in this very process: one machine, or the simulation of several workers."""

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


def train(
    transport: Transport,
    coordinator: Coordinator,
    steps: Iterable[int],
    observers: Iterable[Observer] = (),
    advance: Callable[[int], None] = lambda done: None,
) -> None:
    """Runs the private steps.

    Args:
        transport: adds up the workers' sums.
        coordinator: adds the noise, pays, updates.
        steps: the steps to take, in order.
        observers: called after each step that they are due at: checkpoints, metrics, evaluation.
        advance: learns after each step how many are done, and nothing else.
    """
    observers = list(observers)
    try:
        for step in steps:
            summary = coordinator.replay(step)
            if summary is None:
                if coordinator.threshold is not None:
                    transport.set_clip_threshold(coordinator.threshold)
                total = transport.aggregate(step)
                summary = coordinator.discard(step) if total is None else coordinator.apply(step, total)
            advance(summary.done)
            for observer in observers:
                if observer.due(summary):
                    coordinator.commit()
                    observer.see(summary)
    finally:  # also what an error says may depend on the last release
        coordinator.commit()
