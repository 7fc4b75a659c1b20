"""What a Ray cluster does: its machines, and the runs on it, where and how far. Nothing is started."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dpfed.cluster.reach import ray_folder, require_cluster
from dpfed.cluster.relay import RUN
from dpfed.console.terminal import console, say
from dpfed.data.reasons import visible
from dpfed.errors import UserError
from dpfed.live.figures import overview
from dpfed.live.scan import Scan
from dpfed.progress import Silent

_REMEDY = "Start one (`ray start --head`), or set RAY_ADDRESS to host and port of its head."
_WORKER = "RayTrainWorker"  # what Ray Train calls the process of a worker
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster: its host, and what it has."""

    host: str
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Running:
    """A run on the cluster.

    Attributes:
        run: its folder.
        workers: how many there are by host; none: it waits for machines, or its workers start.
        state: of its files, in words.
    """

    run: str
    workers: dict[str, int]
    state: str


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")] = False) -> None:
    """Show the machines of a Ray cluster, and the runs on it: where their workers are, and how far they have come."""
    say("connecting to Ray", True)
    machines, free, runs = _looked()
    if as_json:
        print(json.dumps({"machines": [*map(asdict, machines)], "free": free, "runs": [*map(asdict, runs)]}, indent=1))
        return
    totals = {kind: sum(getattr(one, kind) for one in machines) for kind in free}
    left = ", ".join(f"{free[kind]:g} of {total:g} {kind.upper()[:3]}s" for kind, total in totals.items() if total)
    _line("cluster", f"{len(machines)} machine{'s' if len(machines) > 1 else ''}; free: {left}")
    for machine in machines:
        _line("machine", f"{machine.host}: {machine.cpus:g} CPUs" + (f", {machine.gpus:g} GPUs" if machine.gpus else ""))
    for one in runs:
        where = ", ".join(f"{count} on {host}" for host, count in one.workers.items())
        _line("run", f"{one.run}: {one.state}; workers: {where or 'none yet, it waits for machines or starts them'}")
    if not runs:
        _line("run", "none")


def _line(name: str, value: str) -> None:
    console.print(f"{name:>8}  {visible(value)}", markup=False, highlight=False, soft_wrap=True)


def _looked() -> tuple[list[Machine], dict[str, float], list[Running]]:
    """The machines, what is free, and the runs.

    Raises:
        UserError: if there is no cluster, or it does not answer.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    if named == "local":
        raise UserError(
            f"RAY_ADDRESS is 'local': a cluster of a run's own, which no one else can ask. {_REMEDY} [ray-no-cluster]"
        )
    if not named and not (ray_folder() / "ray_current_cluster").is_file():
        raise UserError(f"no Ray cluster runs on this machine, and RAY_ADDRESS names none. {_REMEDY} [ray-no-cluster]")
    require_cluster(Silent(), 0.0, _REMEDY)
    try:
        import ray
        from ray._private import state  # which asks the head alone: no dashboard is needed
    except ImportError as error:
        raise UserError("`dpfed cluster status` needs Ray: pip install 'dpfed[ray]'. [cluster-ray-missing]") from error
    try:
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
        nodes, actors, free = ray.nodes(), [*state.actors().values()], ray.available_resources()
    except Exception as error:  # whatever Ray raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise UserError(f"the Ray cluster does not answer: {reason}. {_REMEDY} [ray-no-answer]") from error
    finally:
        ray.shutdown()
    here = [node for node in nodes if node["Alive"]]
    machines = [Machine(_host(node), node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0)) for node in here]
    return machines, {"cpus": free.get("CPU", 0.0), "gpus": free.get("GPU", 0.0)}, _runs(nodes, actors)


def _runs(nodes: list[dict[str, Any]], actors: list[dict[str, Any]]) -> list[Running]:
    """The runs of drivers that are there, each with the workers of the same job."""
    hosts = {node["NodeID"]: _host(node) for node in nodes}
    alive = [actor for actor in actors if actor["State"] == "ALIVE"]
    found = []
    for actor in alive:
        if actor["Name"].startswith(RUN):
            folder = actor["Name"].removeprefix(RUN)
            own = [one for one in alive if one["JobID"] == actor["JobID"] and one["ActorClassName"] == _WORKER]
            workers = Counter(hosts.get(one["Address"]["NodeID"], "an unknown host") for one in own)
            found.append(Running(folder, dict(sorted(workers.items())), _state(Path(folder))))
    return sorted(found, key=lambda one: one.run)


def _host(node: dict[str, Any]) -> str:
    name, address = node.get("NodeManagerHostname", ""), node.get("NodeManagerAddress", "")
    return f"{name} ({address})" if name and name != address else str(address)


def _state(folder: Path) -> str:
    """How far a run has come, by its files."""
    if not folder.is_dir():
        return "nothing in its folder yet, or another machine's"
    scan = Scan(folder)
    if (seen := scan.one(scan.single or "")) is None:
        return "no run in its folder yet"
    shown = {figure.key: figure for figure in reversed(overview(seen))}
    words = [seen.state, *(shown[key].shown for key in ("steps_done",) if key in shown)]
    if (left := shown.get("seconds_left")) is not None and left.value is not None:
        words.append(f"{left.shown} left")
    return ", ".join(words)
