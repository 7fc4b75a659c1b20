"""The loop. Read this first: everything else is a detail of one of its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dpfed.callbacks import Callback, StepSummary
from dpfed.training.coordinator import Coordinator
from dpfed.training.transport import Transport


def train(
    transport: Transport,
    coordinator: Coordinator,
    steps: Iterable[int],
    callbacks: Iterable[Callback] = (),
    advance: Callable[[int], None] = lambda done: None,
) -> None:
    """Runs the private steps.

    Args:
        transport: adds up the workers' sums.
        coordinator: adds the noise, pays, updates.
        steps: the steps to take, in order.
        callbacks: their `on_step` is called after each step that they are due at, in this order.
        advance: learns after each step how many are done, and nothing else.
    """
    callbacks = list(callbacks)
    try:
        for summary in taken(transport, coordinator, steps):
            advance(summary.done)
            for callback in callbacks:
                if callback.is_due(summary):
                    coordinator.commit()
                    callback.on_step(summary)
    finally:  # also what an error says may depend on the last release
        coordinator.commit()


def taken(transport: Transport, coordinator: Coordinator, steps: Iterable[int]) -> Iterator[StepSummary]:
    """Takes one step after the other. Whoever lets anything out that depends on one calls `Coordinator.commit` before.

    Args:
        transport: adds up the workers' sums.
        coordinator: adds the noise, pays, updates.
        steps: the steps to take, in order.

    Yields:
        What each step may tell, once it is charged.
    """
    for step in steps:
        summary = coordinator.replay(step)
        if summary is None:
            if coordinator.threshold is not None:
                transport.set_clip_threshold(coordinator.threshold)
            total = transport.aggregate(step)
            summary = coordinator.discard(step) if total is None else coordinator.apply(step, total)
        yield summary
