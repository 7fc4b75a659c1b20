"""`dpfed cluster status`: the machines of a Ray cluster, and the runs on it. The command starts nothing."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dpfed.cluster.driver import begin_ray, end_ray
from dpfed.cluster.reach import ray_folder, require_cluster
from dpfed.cluster.relay import RUN
from dpfed.console.terminal import console, say
from dpfed.data.reasons import visible
from dpfed.errors import UserError
from dpfed.live.figures import overview
from dpfed.live.scan import Scan
from dpfed.progress import Silent

_REMEDY = "Start one (`ray start --head`), or set RAY_ADDRESS to the host and port of a cluster's head node."
_WORKER = "RayTrainWorker"  # class name of Ray Train's worker processes
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster: its host, and its numbers of CPUs and GPUs."""

    host: str
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Running:
    """A run on the cluster.

    Attributes:
        run: Folder of the run.
        workers: Number of workers by host; empty: the run waits for machines, or its workers are starting.
        state: State of the run according to its files, such as ``running, 30 of 100 (30 %), about 2 min left``.
    """

    run: str
    workers: dict[str, int]
    state: str


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")] = False) -> None:
    """Show the machines of a Ray cluster, and the runs on it: their workers, steps done and time left."""
    say("connecting to Ray", True)
    machines, free, runs = _looked()
    if as_json:
        print(json.dumps({"machines": [*map(asdict, machines)], "free": free, "runs": [*map(asdict, runs)]}, indent=1))
        return
    totals = {kind: sum(getattr(machine, kind) for machine in machines) for kind in free}
    left = ", ".join(f"{free[kind]:g} of {total:g} {kind.upper()[:3]}s" for kind, total in totals.items() if total)
    _line("cluster", f"{len(machines)} machine{'s' if len(machines) > 1 else ''}; free: {left}")
    for machine in machines:
        _line("machine", f"{machine.host}: {machine.cpus:g} CPUs" + (f", {machine.gpus:g} GPUs" if machine.gpus else ""))
    for run in runs:
        where = ", ".join(f"{count} on {host}" for host, count in run.workers.items())
        _line(
            "run",
            f"{run.run}: {run.state}; workers: {where or 'none now: the run waits for machines, or its workers are starting'}",
        )
    if not runs:
        _line("run", "none")


def _line(name: str, value: str) -> None:
    console.print(f"{name:>8}  {visible(value)}", markup=False, highlight=False, soft_wrap=True)


def _looked() -> tuple[list[Machine], dict[str, float], list[Running]]:
    """Returns the cluster's machines, its free CPUs and GPUs, and its runs.

    Raises:
        UserError: If there is no cluster, or it does not answer.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    if named == "local" or not (named or (ray_folder() / "ray_current_cluster").is_file()):
        why = "no Ray cluster runs on this machine, and RAY_ADDRESS names none"
        if named:
            why = "RAY_ADDRESS is 'local', so each run starts its own cluster"
        raise UserError(f"{why}. {_REMEDY} [ray-no-cluster]")
    require_cluster(Silent(), 0.0, _REMEDY)
    try:
        import ray
        from ray._private import state  # this module asks the head only: no dashboard is needed
    except ImportError as error:
        raise UserError("`dpfed cluster status` needs Ray: pip install 'dpfed[ray]'. [cluster-ray-missing]") from error
    try:
        begin_ray(address="auto", log_to_driver=False, logging_level=logging.ERROR)
        nodes, actors, free = ray.nodes(), [*state.actors().values()], ray.available_resources()
    except Exception as error:  # Ray raises many kinds of errors
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise UserError(f"the Ray cluster does not answer: {reason}. {_REMEDY} [ray-no-answer]") from error
    finally:
        end_ray()
    here = [node for node in nodes if node["Alive"]]
    machines = [Machine(_host(node), node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0)) for node in here]
    return machines, {"cpus": free.get("CPU", 0.0), "gpus": free.get("GPU", 0.0)}, _runs(nodes, actors)


def _runs(nodes: list[dict[str, Any]], actors: list[dict[str, Any]]) -> list[Running]:
    """Returns the runs whose drivers are alive, each with the workers of the same Ray job."""
    hosts = {node["NodeID"]: _host(node) for node in nodes}
    alive = [actor for actor in actors if actor["State"] == "ALIVE"]
    runs = []
    for actor in alive:
        if actor["Name"].startswith(RUN):
            folder = actor["Name"].removeprefix(RUN)
            of_job = [other for other in alive if other["JobID"] == actor["JobID"] and other["ActorClassName"] == _WORKER]
            workers = Counter(hosts.get(worker["Address"]["NodeID"], "an unknown host") for worker in of_job)
            runs.append(Running(folder, dict(sorted(workers.items())), _state(Path(folder))))
    return sorted(runs, key=lambda running: running.run)


def _host(node: dict[str, Any]) -> str:
    name, address = node.get("NodeManagerHostname", ""), node.get("NodeManagerAddress", "")
    return f"{name} ({address})" if name and name != address else str(address)


def _state(folder: Path) -> str:
    """Returns a phrase about a run according to its files: its state, steps done and time left, or that no files are there."""
    if not folder.is_dir():
        return "its folder does not exist yet, or is on another machine"
    scan = Scan(folder)
    if (seen := scan.one(scan.single or "")) is None:
        return "no run in its folder yet"
    shown = {figure.key: figure for figure in reversed(overview(seen))}
    words = [seen.state, *(shown[key].shown for key in ("steps_done",) if key in shown)]
    if (left := shown.get("seconds_left")) is not None and left.value is not None:
        words.append(f"{left.shown} left")
    return ", ".join(words)
