"""What each process of a cluster does, whoever started it: Ray Train, torchrun, or nobody (one process alone)."""

from __future__ import annotations

import contextlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from cluster.collective import Collective
from cluster.link import Link
from cluster.tensorboard import TensorBoard
from dpfed.config import Config, parse_config
from dpfed.errors import UserError
from dpfed.pretraining import Job, begin, carry_out, check, take_up
from dpfed.randomness import Randomness
from dpfed.run import RunDirectory
from dpfed.training.session import assemble
from dpfed.watching import Watcher

_ENDING = 60.0  # seconds that a rank 0 of before, told to end, may still hold the run


@dataclass(frozen=True)
class Task:
    """What the processes of a cluster are asked to do.

    They may be started again after a fault, so they begin the run if it is not there, and otherwise go on with it.

    Attributes:
        folder: the run's directory, absolute, the same on every machine where rank 0 may start.
        config: of the run, with absolute paths; ``None``: the run is there.
        again: whether the user wants to go on with a run that is there.
    """

    folder: Path
    config: Config | None = None
    again: bool = True

    def check(self) -> None:
        """Refuses a run that is not there, or one that nobody asked to go on with. To be called once, before all is started.

        Raises:
            UserError: saying what is there.
        """
        if self.config is None:
            RunDirectory.open(self.folder)
        else:
            check(self.config, self.folder, self.again)


def work(task: Task, watcher: Watcher) -> None:
    """Carries out a task together with the other processes of the default process group.

    Args:
        task: the same on every rank.
        watcher: sees the stages, on rank 0.

    Raises:
        UserError: on rank 0, for what the user can mend; the other ranks then just return.
    """
    link = Link()
    if link.rank == 0:
        _lead(link, task, watcher)
    else:
        _follow(link)


def _lead(link: Link, task: Task, watcher: Watcher) -> None:
    configured = False

    def end() -> None:
        if configured:
            link.announce(None)
        else:
            link.broadcast()  # no configuration: nothing to do

    try:
        with contextlib.ExitStack() as stack:
            job = _take(task, link.size, watcher, stack)
            if job is not None:
                link.broadcast(job.parts.config.dump().encode())
                configured = True
                link.broadcast(job.randomness.for_owners().master)
                link.agree()
                board = stack.enter_context(TensorBoard(job.run))
                carry_out(job, watcher, lambda worker: Collective(link, job.parts.model, worker), [board])
    except UserError:
        end()
        raise
    end()


def _follow(link: Link) -> None:
    text = link.broadcast()
    if not text:
        return
    randomness = Randomness(link.broadcast())
    try:
        parts = assemble(parse_config(tomllib.loads(text.decode())), owner=link.rank, owners=link.size)
        worker = parts.worker(randomness)
    except UserError as error:
        link.agree(str(error))
        link.announce(None)
        return
    link.agree()
    Collective(link, parts.model, worker).serve()


def _take(task: Task, owners: int, watcher: Watcher, stack: contextlib.ExitStack) -> Job | None:
    """The run, begun or taken up, and locked until the stack closes; ``None`` if it is finished."""
    if task.config is not None and RunDirectory.unused(task.folder):
        job = begin(task.config, task.folder, watcher, owners)
        stack.enter_context(job.run.locked())
        return job
    run = RunDirectory.open(task.folder)
    stack.enter_context(run.locked(_ENDING))
    if run.finished:
        run.forget_key()
        return None
    return take_up(run, watcher, owners)
