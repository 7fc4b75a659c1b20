"""Relays the progress of rank 0 to the process that the user started."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dpfed.progress import Progress, signs_of_life

if TYPE_CHECKING:
    from ray.util.queue import Queue

    from dpfed.callbacks import StepSummary
    from dpfed.evaluation.measured import Evaluation

_Result = TypeVar("_Result")
RUN = "dpfed run "  # a run's queue is named by this prefix and the run's folder: `dpfed cluster status` finds the run by it
_INTERVAL = 0.25  # seconds between two reports of the same stage


class Relay(Progress):
    """A `Progress` that sends its events to a `Progress` in another process.

    Args:
        queue: Queue of events; `relayed` reads it in the other process.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """Sends the start of a stage, and returns the function that sends how far the stage is. See `Progress`."""
        self._put("stage", name, total)
        last = 0.0

        def advance(done: int) -> None:
            nonlocal last
            if done == total or time.monotonic() - last >= _INTERVAL:
                last = time.monotonic()
                self._put("advance", name, done)

        return advance

    def note(self, text: str) -> None:
        """Sends a note. See `Progress`."""
        self._put("note", text)

    def on_step(self, step: StepSummary) -> None:
        """Sends the summary of a step. See `Callback`."""
        self._put("on_step", step.sendable())

    def on_evaluation(self, figures: list[Evaluation]) -> None:
        """Sends the figures of an evaluation. See `Callback`."""
        self._put("on_evaluation", figures)

    def at(self, rank: int, host: str) -> None:
        """Sends the host on which a worker runs."""
        self._put("at", rank, host)

    def _put(self, *event: Any) -> None:
        self._queue.put(event)  # waits, about a millisecond: the queue could reorder events that are sent at the same time


def telling_of_deaths(queue: Queue, restarts: int) -> Any:
    """Returns a callback that reports which worker died and what follows. Ray Train calls it in a process of its own.

    Args:
        queue: Queue of events; `relayed` reads it in the user's process.
        restarts: Largest number of times that the workers are started again.
    """
    from ray.exceptions import RayActorError
    from ray.train import UserCallback

    class Deaths(UserCallback):
        count = 0

        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
            self.count += 1  # the other workers end as well, because the process group is broken
            dead = [rank for rank, error in worker_exceptions.items() if isinstance(error, RayActorError)]
            ranks = sorted(dead or worker_exceptions)
            how = "died" if dead else "failed, or was cut off for half a minute"
            follows = f"restart {self.count} of {restarts}; no step is lost" if self.count <= restarts else "no restart is left"
            queue.put(("deaths", ranks, f"{how}: {follows}"))

    return Deaths()


def in_a_thread(work: Callable[[], _Result]) -> _Result:
    """Runs a function in another thread and returns its result.

    In the main thread, Ray would handle Ctrl-C itself, and end with exit code 1 and no message.
    """
    outcome: Future[_Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result()


class Hosts(dict[int, str]):
    """The host of each worker by rank, as far as workers have reported it."""

    def worker(self, rank: int) -> str:
        """Returns a worker's name for messages: its rank, with its host if the host is known."""
        return f"{rank} on {self[rank]}" if rank in self else str(rank)


@contextlib.contextmanager
def relayed(run: Path, progress: Progress, hosts: Hosts, what: str, beside: Callable[[], str]) -> Iterator[Queue]:
    """Yields a queue whose events reach the progress of this process during the block.

    Args:
        run: Folder of the run.
        progress: Progress of this process.
        hosts: Hosts of the workers, filled as workers report them.
        what: Description of the work that precedes the first event of a worker. If this work takes long, notes repeat the
            description.
        beside: Function that returns a text, which is added to each of these notes.
    """
    import ray
    from ray.util.queue import Empty, Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)  # other machines may leave
    options = {"num_cpus": 0, "scheduling_strategy": here, "name": f"{RUN}{run}"}  # each driver has its own namespace
    queue, ended = Queue(actor_options=options), threading.Event()
    advances: dict[str, Callable[[int], None]] = {}

    def deliver(kind: str, *content: Any) -> None:
        match kind:
            case "stage":
                advances[content[0]] = progress.stage(*content)
            case "advance":
                advances[content[0]](content[1])
            case "at":
                hosts[content[0]] = content[1]
            case "deaths":
                ranks, how = content
                progress.note(f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(hosts.worker, ranks))} {how}")
            case "note" | "on_step" | "on_evaluation":
                getattr(progress, kind)(*content)

    def drain() -> None:
        with contextlib.ExitStack() as starting:  # until a worker's first event, minutes on a busy machine
            starting.enter_context(signs_of_life(progress.note, what, beside=beside))
            while True:
                try:
                    event = tuple(queue.get(timeout=0.2))
                except Empty:
                    if ended.is_set():
                        return
                    continue
                if event[0] != "at":
                    starting.close()
                deliver(*event)

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    try:
        yield queue
    finally:
        ended.set()
        thread.join(timeout=10)
        queue.shutdown(force=True)
