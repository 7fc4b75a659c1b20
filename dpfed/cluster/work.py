"""The work of each process of a cluster. Ray Train or torchrun starts the processes, or there is only one."""

from __future__ import annotations

import contextlib
import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from dpfed.artifacts.directory import RunDirectory
from dpfed.callbacks import Callback
from dpfed.cluster.collective import Collective
from dpfed.cluster.link import DIGEST_BYTES, Link
from dpfed.config import Config, read_back
from dpfed.errors import UserError
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress
from dpfed.runs.build import Parts, build
from dpfed.runs.job import Job, create_job, resume_job
from dpfed.runs.preflight import Preflight
from dpfed.runs.resolution import resolve_defaults
from dpfed.runs.running import run_job

_ENDING = 150.0  # seconds that a previous rank 0 may still hold the run; a dead machine's locks on NFS last 90


@dataclass(frozen=True)
class Task:
    """The task of a cluster's processes: to begin or to resume a run.

    The processes may be started again after a fault. With `resume`, they begin the run if it does not exist, and otherwise
    resume it.

    Attributes:
        folder: Directory of the run, an absolute path that is the same on every machine where rank 0 may start.
        config: Configuration of the run, with absolute paths; ``None``: the run must exist already.
        resume: Whether to resume a run that exists; ``False``: a folder in use is refused. If `config` is ``None``, the run is
            resumed in either case.
        beside: Folder that the launcher made beside the run's directory. If rank 0 does not see this folder, its machine has
            other storage, and the task is refused. ``None``: this is not checked.
        callbacks: Callbacks that the process of rank 0 calls; this process may be on another machine.
        comments: Lines that explain the configuration, written above it in the run's ``config.toml``.
    """

    folder: Path
    config: Config | None = None
    resume: bool = True
    beside: Path | None = None
    callbacks: tuple[Callback, ...] = ()
    comments: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuses a run that is missing, or a folder that is in use and is not the run to be resumed.

        Raises:
            UserError: If the run is missing, the folder is in use or cannot be made, or the run to be resumed has another
                configuration.
        """
        if self.config is None:
            RunDirectory.open(self.folder)
        elif self.resume and not RunDirectory.unused(self.folder):
            RunDirectory.open(self.folder).refuse_another(resolve_defaults(self.config))
        else:
            RunDirectory.refuse_unusable(self.folder)


def work(task: Task, progress: Progress) -> None:
    """Carries out a task together with the other processes of the default process group.

    Args:
        task: Run to begin or to resume; the same on every rank.
        progress: Progress, which shows the stages on rank 0.

    Raises:
        UserError: On rank 0, if the run cannot be begun, resumed or carried out; the other ranks then return.
    """
    link = Link()
    if link.rank == 0:
        _lead(link, task, progress)
    else:
        _follow(link, task.folder)


def _lead(link: Link, task: Task, progress: Progress) -> None:
    """Carries out a task on rank 0."""
    configured = False

    def end() -> None:
        if configured:
            link.announce(None)
        else:
            link.broadcast()  # an empty configuration: the other ranks return

    try:
        with contextlib.ExitStack() as stack:
            job = _take(task, link.size, progress, stack)
            if job is not None:
                link.broadcast(job.parts.config.dump().encode())
                configured = True
                link.broadcast(job.run.identity.encode())
                link.broadcast(job.randomness.for_ranks().master)
                link.agree(_mark(job.parts))
                run_job(job, progress, lambda job: _join(link, job.parts, job.randomness.for_ranks()), task.callbacks)
    except UserError:
        end()
        raise
    end()


def _follow(link: Link, folder: Path) -> None:
    """Takes part in the run on a rank above 0. Returns when the run ends, or when this rank cannot join it."""
    text = link.broadcast()
    if not text:
        return
    identity, randomness = link.broadcast().decode(), Randomness(link.broadcast())
    parts, trouble = None, ""
    try:
        if RunDirectory(folder).identity != identity:  # on other storage, this process as rank 0 would begin the run anew
            raise UserError(f"the run at {folder} is not worker 0's: use storage that all machines share. [worker-other-run]")
        parts = build(read_back(tomllib.loads(text.decode()), "worker 0"), rank=link.rank, world_size=link.size)
    except UserError as error:
        trouble = error.public
    with contextlib.suppress(UserError):  # rank 0 raises the same error, and announces the end
        link.agree(_mark(parts) if parts else b"", trouble)
        if link.announce(None) is None or parts is None:
            return
        return _join(link, parts, randomness).follow()
    link.announce(None)


def _mark(parts: Parts) -> bytes:
    """Returns digests of the records, the user's own parts and the plan, which must be the same on all ranks.

    If the digests differed, a record could belong to two workers, or be drawn at another rate. Each machine has its own
    installation of the user's parts.
    """
    user_parts = "".join(f"/{key} {said}" for key, said in sorted(parts.own.items()))
    marked = (parts.store.fingerprint, user_parts, parts.plan.fingerprint)
    return b"".join(hashlib.blake2b(each.encode(), digest_size=DIGEST_BYTES).digest() for each in marked)


def _join(link: Link, parts: Parts, randomness: Randomness) -> Collective:
    """Returns this rank's transport, after sending rank 0's weights to all ranks, including frozen ones and buffers."""
    if link.rank == 0:
        link.announce(0)  # rank 0 has loaded everything; the other ranks continue
    for value in parts.model.state_dict().values():
        dist.broadcast(value, 0)
    return Collective(link, parts.model, parts.learner.worker(randomness))


def _take(task: Task, world_size: int, progress: Progress, stack: contextlib.ExitStack) -> Job | None:
    """Creates or resumes the run, and locks it until the stack closes. Returns ``None`` if the run is finished."""
    if task.beside is not None and not task.beside.is_dir():
        raise UserError(f"worker 0 does not see {task.folder.parent}: use storage that all machines share. [worker-storage]")
    task.check()
    if task.config is not None and RunDirectory.unused(task.folder):
        job = create_job(Preflight.of(task.config, task.folder, world_size, comments=task.comments), progress)
        stack.enter_context(job.run.locked())
        return job
    run = RunDirectory.open(task.folder)
    stack.enter_context(run.locked(_ENDING))
    if run.finished:
        run.delete_secrets()
        return None
    return resume_job(run, progress, world_size)
