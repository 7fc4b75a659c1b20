"""The loop. Read this first: everything else is a detail of one of its lines."""

from __future__ import annotations

import contextlib
import itertools
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
        callbacks: their `on_step` is called after each step that they are due at, in this order; of those that wait
            (`Callback.waits`) also some steps later.
        advance: learns after each step how many are done, and nothing else.
    """
    callbacks, unseen = list(callbacks), list[StepSummary]()
    with committed(coordinator):
        for summary in taken(transport, coordinator, steps):
            advance(summary.done)
            unseen.append(summary)
            if coordinator.is_full:
                coordinator.commit()
            if coordinator.owes and not any(callback.is_due(summary) for callback in callbacks if not callback.waits):
                continue
            for one, callback in itertools.product(unseen, callbacks):
                if callback.is_due(one):
                    coordinator.commit()
                    callback.on_step(one)
            unseen.clear()


@contextlib.contextmanager
def committed(coordinator: Coordinator) -> Iterator[None]:
    """Commits when the block ends, before an error can say anything: what it says may depend on the last releases."""
    try:
        yield
    except BaseException:
        try:
            coordinator.commit()
        except BaseException as failure:
            raise failure from None  # without what the first error says
        raise
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
