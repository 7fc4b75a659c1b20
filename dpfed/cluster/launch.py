"""Launcher that starts the processes of a cluster with Ray Train."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import logging
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.resuming import resuming_command
from dpfed.cluster.driver import begin_ray, end_ray
from dpfed.cluster.reach import REMEDY, ray_folder, require_cluster, room_for, taking_back, watched
from dpfed.cluster.relay import Hosts, Relay, in_a_thread, relayed, telling_of_deaths
from dpfed.cluster.torchrun import BACKEND_OF, TIMEOUT, on_the_nodes_network
from dpfed.cluster.work import Task, work
from dpfed.errors import UserError, goes_on
from dpfed.progress import Progress, signs_of_life
from dpfed.runs.stopping import stopped

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

# By default Ray starts its workers with nice 15, so that all other processes of the machine take precedence.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # Long messages of Ray; `telling_of_deaths` and `watched` report the same in one line.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^(A worker died or was killed|The node with node id|Raylet is terminated)",
    "RAY_worker_niceness": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",  # not 60: on a busy machine, loading PyTorch alone takes that long
}
_OPTIONS = " --cluster ray"  # of the command that resumes a run
_JOB_COPY = "working_dir_files"  # folder in the path of the temporary copy in which `ray job submit` runs a command


@dataclass(frozen=True)
class Resources:
    """The number of workers, and the resources of each.

    Attributes:
        workers: Number of workers.
        least: Smallest number of workers with which the run starts, and with which it continues when machines are lost; workers
            are added when machines are there again. ``None``: the run needs all `workers`.
        gpus: GPUs per worker, 0 or 1; ``None``: one if the cluster has any.
        cpus: CPUs per worker; ``None``: the largest number, at least 1, with which all workers fit on the machines.
        restarts: Largest number of times that the workers are started again after one of them has died.

    Raises:
        UserError: If a number is out of range.
    """

    workers: int = 1
    least: int | None = None
    gpus: int | None = None
    cpus: int | None = None
    restarts: int = 3

    def room(self) -> int:
        """Returns the number of workers that fit on the machines now in the cluster; `cpus` and `gpus` must not be ``None``."""
        return room_for(self.cpus or 1, self.gpus or 0, _machines())

    def __post_init__(self) -> None:
        _check(self.workers >= 1, f"--workers must be at least 1, got {self.workers}")
        _check(
            self.least is None or 1 <= self.least <= self.workers,
            f"--workers {self.least}-{self.workers} is not a range: expected 1 <= first <= last",
        )
        _check(self.gpus in (None, 0, 1), f"--gpus-per-worker must be 0 or 1, got {self.gpus}")
        _check(self.cpus is None or self.cpus >= 1, f"--cpus-per-worker must be at least 1, got {self.cpus}")
        _check(self.restarts >= 0, f"--restarts must not be negative, got {self.restarts}")


def launch(task: Task, resources: Resources, progress: Progress) -> RunDirectory:
    """Carries out a task on a Ray cluster.

    The cluster is the one to which this process is connected, or else the one that RAY_ADDRESS names, or the one that runs on
    this machine, or a new one on this machine.

    Args:
        task: Run to begin or to resume.
        resources: Number of workers, and their resources.
        progress: Progress in this process, which shows the stages.

    Returns:
        The finished run.

    Raises:
        UserError: If the run cannot be begun, resumed or carried out, Ray is missing or does not answer, a new cluster on
            this machine has no room for the workers, or workers died more often than `resources` allows.
    """
    task = _with_a_place(task)
    task.check()
    _refuse_job_copy(task)
    os.environ.update({name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()})
    if "ray" not in sys.modules:  # if it was imported, this process may be connected already
        require_cluster(progress)
    progress.note("loading Ray")
    try:
        from ray.train import TrainingFailedError, WorkerGroupError
    except ImportError as error:
        raise UserError("--cluster ray needs Ray: pip install 'dpfed[ray]'. [ray-missing]") from error
    logging.getLogger("ray").setLevel(logging.ERROR)
    progress.note("connecting to Ray")
    hosts = Hosts()
    with contextlib.ExitStack() as stack:
        is_local = stack.enter_context(_connected(progress))
        sized = _sized(resources, _machines(), is_local, progress)
        starting = f"starting {_counted(sized)}"
        progress.note(f"{starting}, each of which loads PyTorch")
        storage = stack.enter_context(_storage(task))
        queue = stack.enter_context(relayed(task.folder, progress, hosts, starting, _free))
        task = dataclasses.replace(task, resume=True, beside=storage)  # workers may be started again
        trainer = _trainer(task, sized, storage, queue)
        stack.enter_context(goes_on(lambda: _stopped(task)))
        stack.enter_context(taking_back(trainer))
        stack.enter_context(watched(sized.least or sized.workers, sized.room, progress))
        try:
            refusal = in_a_thread(trainer.fit).return_value  # type: ignore[attr-defined]  # Ray types Train v1
        except WorkerGroupError as error:
            reasons = (f"worker {hosts.worker(rank)}: {_last_line(reason)}" for rank, reason in error.worker_failures.items())
            often = f" {sized.restarts + 1} times, the last time" if sized.restarts else ""
            raise UserError(
                f"workers died{often} with: {'; '.join(reasons)}. {_continued(task)}. [ray-workers-died]"
            ) from error
        except TrainingFailedError as error:
            raise UserError(f"Ray gave up: {_last_line(error)}. {_continued(task)}. [ray-gave-up]") from error
    if refusal:
        raise UserError(refusal)
    return RunDirectory.open(task.folder)


def _counted(sized: Resources) -> str:
    """Returns a phrase such as ``3 workers``: how many start now. If a range was asked for, the room in the cluster decides."""
    now = sized.workers
    if sized.least:
        now = min(now, max(sized.least, sized.room()))
    words = f"{now} worker{'s' if now > 1 else ''}"
    asked = f"{sized.least}-{sized.workers}"
    return words if now == sized.workers else f"{words} (of {asked}: the cluster has no room for more now)"


def _trainer(task: Task, resources: Resources, storage: Path, queue: Any) -> TorchTrainer:
    """Returns the object of Ray Train that starts the workers and runs the task in them."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    each = {"CPU": resources.cpus} | ({"GPU": 1} if resources.gpus else {})
    workers: Any = (resources.least, resources.workers) if resources.least else resources.workers
    return TorchTrainer(
        _in_worker,  # type: ignore[arg-type]  # Ray types Train v1
        train_loop_config={"task": task, "queue": queue},
        torch_config=on_the_nodes_network(BACKEND_OF[bool(resources.gpus)], TIMEOUT),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=bool(resources.gpus), resources_per_worker=each),
        run_config=RunConfig(  # type: ignore[call-arg]  # Ray types Train v1
            name=task.folder.name,
            callbacks=[telling_of_deaths(queue, resources.restarts)],
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=resources.restarts),
            # Ray leaves all GPUs visible to workers that get none.
            worker_runtime_env=None if resources.gpus else {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}},
        ),
    )


def _stopped(task: Task) -> str:
    """Returns the message after Ctrl-C, which says how the run is continued."""
    if RunDirectory.unused(task.folder):
        return "stopped before the run began; the same command begins it"
    return stopped(RunDirectory(task.folder), _OPTIONS)


def _continued(task: Task) -> str:
    """Returns a sentence, without its full stop, about what continues a run whose workers died."""
    if RunDirectory.unused(task.folder):
        return "The run had not begun, and nothing was spent: the same command begins it"
    return f"No step is lost: {resuming_command(RunDirectory(task.folder), _OPTIONS)} continues the run"


def _in_worker(settings: dict[str, Any]) -> str | None:
    """Runs the task in one of Ray's workers. Rank 0 returns a refusal as text, because Ray would retry after an exception."""
    from ray.train import get_context

    relay = Relay(settings["queue"])
    relay.at(get_context().get_world_rank(), socket.gethostname())
    try:
        work(settings["task"], relay)
    except UserError as error:
        return error.public
    return None


@contextlib.contextmanager
def _connected(progress: Progress) -> Iterator[bool]:
    """Connects to a Ray cluster for the block. Yields ``True`` if this process started the cluster, for this run alone."""
    import ray

    if ray.is_initialized():
        yield False
        return
    logs = f"Ray's own logs are in {ray_folder() / 'session_latest' / 'logs'}; `ray stop` ends a cluster's processes."
    remedy = REMEDY if "RAY_ADDRESS" in os.environ else logs
    try:
        with signs_of_life(progress.note, "connecting to Ray"):
            try:
                is_local = _connection()
            except (RuntimeError, TimeoutError):  # a head that starts on a busy machine can take longer than Ray waits
                is_local = _connection()
    except Exception as error:
        reason = " ".join(str(error).split()) if "ersion mismatch" in str(error) else _last_line(error)
        raise UserError(f"connecting to Ray failed: {reason}. {remedy} [ray-connection]") from error
    try:
        yield is_local
    finally:
        end_ray()


def _connection() -> bool:
    """Connects this process to Ray. Returns whether this process started the cluster, for this run only."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        begin_ray(address="auto", **quiet)
        return os.environ.get("RAY_ADDRESS") == "local"
    except ConnectionError:
        if "RAY_ADDRESS" in os.environ:
            raise
        begin_ray(address="local", include_dashboard=False, **quiet)
        return True


def _last_line(error: Exception) -> str:
    """Returns the last line of an error's message, without a full stop. Ray's servers add tracebacks to their errors."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip().rstrip(".")


def _free() -> str:
    """Returns a phrase that names the CPUs and GPUs of the cluster that no job uses now; "" if Ray does not tell."""
    import ray

    with contextlib.suppress(Exception):  # errors of Ray if the head is gone
        there, free = ray.cluster_resources(), ray.available_resources()
        kinds = (f"{free.get(kind, 0):g} of {there[kind]:g} {kind}s" for kind in ("CPU", "GPU") if there.get(kind))
        return f"; free in the cluster: {', '.join(kinds)}"
    return ""


def _machines() -> list[dict[str, float]]:
    """Returns the resources of each machine of the cluster that is alive."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


@contextlib.contextmanager
def _storage(task: Task) -> Iterator[Path]:
    """Yields a temporary folder for Ray's own files, beside the run on shared storage. A run resumes from its own directory."""
    names = f".{task.folder.name}.ray-"
    folder = task.folder.parent / f"{names}{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if RunDirectory(task.folder).finished:  # folders that killed drivers left behind
            for left in task.folder.parent.glob(f"{glob.escape(names)}*"):
                shutil.rmtree(left, ignore_errors=True)


def _sized(resources: Resources, there: list[dict[str, float]], is_local: bool, progress: Progress) -> Resources:
    """Chooses the GPUs and CPUs per worker that the user has not set, and returns the resources.

    Args:
        resources: Resources that the user asked for.
        there: Resources of each machine now.
        is_local: Whether the cluster is this machine only, and will not grow.
        progress: Progress, which shows a note if the run waits for machines.

    Raises:
        UserError: If there will never be enough resources.
    """
    gpus = int(any(machine.get("GPU", 0) for machine in there)) if resources.gpus is None else resources.gpus

    def room(cpus: int) -> int:
        return room_for(cpus, gpus, there)

    most = max(int(machine.get("CPU", 0)) for machine in there)
    cpus = resources.cpus or next((count for count in range(most, 1, -1) if room(count) >= resources.workers), 1)
    if room(cpus) < (needed := resources.least or resources.workers):
        each = f"{cpus} CPU{'s' if cpus > 1 else ''}{' and a GPU' if gpus else ''} each"
        fits = f"room for {room(cpus)} of {needed} worker{'s' if needed > 1 else ''} with {each}"
        if is_local:
            raise UserError(
                f"this machine has {fits}: reduce --workers, --cpus-per-worker or --gpus-per-worker. [ray-too-small]"
            )
        progress.note(f"waiting for machines: the cluster has {fits}")
    return dataclasses.replace(resources, gpus=gpus, cpus=cpus)


def _with_a_place(task: Task) -> Task:
    """Chooses another folder for stores of generated records if the configured one lies in a submitted job's temporary copy.

    Returns:
        The task with a folder for stores beside the run's directory, or the unchanged task.
    """
    config = task.config
    if config is None or not config.data.from_nothing or not _in_job_copy(config.data.stores):
        return task
    data = config.data.model_copy(update={"stores": str(task.folder.parent / "stores")})
    return dataclasses.replace(task, config=config.model_copy(update={"data": data}))


def _in_job_copy(path: str | Path) -> bool:
    return _JOB_COPY in Path(path).parts


def _refuse_job_copy(task: Task) -> None:
    """Refuses paths in a submitted job's temporary copy, which Ray deletes, and which other machines do not see.

    Raises:
        UserError: If the task has such a path; the message names the settings.
    """
    paths: dict[str, str | Path | None] = {"--run": task.folder}
    if task.config is not None:
        data, model = task.config.data, task.config.model
        paths |= {"data.path": data.path, "model.weights": model.weights, "model.architecture": model.architecture}
        if data.source != "store":  # otherwise no store is written there
            paths["data.stores"] = data.stores
    lost = [name for name, path in paths.items() if path and _in_job_copy(path)]
    if lost:
        raise UserError(
            f"a submitted job runs in a temporary copy of its working directory: give {' and '.join(lost)} as absolute paths "
            "on storage that all machines share. [ray-job-copy]"
        )


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"{message}. [ray-resources]")
