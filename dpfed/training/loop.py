"""The training loop. Read this module first: the other modules of this package hold the details."""

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
    """Takes the private steps, and calls callbacks after the steps are charged.

    Args:
        transport: Transport that adds up the workers' sums.
        coordinator: Coordinator, which adds the noise, charges the ledger and updates the model.
        steps: Numbers of the steps to take, in order.
        callbacks: Callbacks, in order. `on_step` is called after each step at which a callback is due; for callbacks that wait
            (`Callback.waits`) it may be called some steps later.
        advance: Function called after each step with the number of finished steps.

    Raises:
        UserError: If `Coordinator.replay`, `Coordinator.apply`, `Coordinator.discard` or `Coordinator.commit` raises it.
        OSError: If a release or the training's state cannot be written.
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
            for pending, callback in itertools.product(unseen, callbacks):
                if callback.is_due(pending):
                    coordinator.commit()
                    callback.on_step(pending)
            unseen.clear()


@contextlib.contextmanager
def committed(coordinator: Coordinator) -> Iterator[None]:
    """Commits when the block ends. If an error ends the block, the commit comes before the error reaches the caller.

    The reason is that the error's message may depend on releases that are not charged yet.
    """
    try:
        yield
    except BaseException:
        try:
            coordinator.commit()
        except BaseException as failure:
            raise failure from None  # hides the first error, whose message may depend on uncharged releases
        raise
    coordinator.commit()


def taken(transport: Transport, coordinator: Coordinator, steps: Iterable[int]) -> Iterator[StepSummary]:
    """Takes one step after the other. The caller must call `Coordinator.commit` before a step's effect leaves the process.

    Args:
        transport: Transport that adds up the workers' sums.
        coordinator: Coordinator, which adds the noise, charges the ledger and updates the model.
        steps: Numbers of the steps to take, in order.

    Yields:
        The summary of each step, which may be shown once the step is charged.
    """
    for step in steps:
        summary = coordinator.replay(step)
        if summary is None:
            if coordinator.threshold is not None:
                transport.set_clip_threshold(coordinator.threshold)
            total = transport.aggregate(step)
            summary = coordinator.discard(step) if total is None else coordinator.apply(step, total)
        yield summary
