"""Measures what each fault does to a step of a federation, in each trust mode: real processes, over TLS, with measured noise.

    python -m benchmarks.federation_faults            all modes, about fifteen minutes; writes results/federation-faults.json
    python -m benchmarks.federation_faults secure     one mode; writes nothing

Three sites run on this machine. The first site misbehaves in some steps, a SuperNode and the server are killed in others, and
the last site comes late. Afterwards every step is computed again from the sites' folders without noise. The noise of a step is
the difference between the released sum and this sum.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.hostile_site import done_in
from benchmarks.record import write_result
from benchmarks.torture.federation import kill_server_app
from dpfed.artifacts.directory import RunDirectory
from dpfed.config import load_config, parse_config
from dpfed.data.generated.shapes import shapes_store
from dpfed.data.store.division import EVALUATION, divide_store, site_folder
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.demo.loopback import RUN, Loopback, loopback
from dpfed.federation.site.folder import SiteFolder
from dpfed.federation.site.serving import site_config
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.protocol.journal import Journal
from dpfed.protocol.terms import Terms
from dpfed.runs.build import build
from dpfed.training.checkpoint import Checkpoints
from dpfed.training.learner import Partition
from dpfed.training.releases import Releases

MODES = ("central", "distributed", "secure", "local")
SITES = 3
STEPS = 30
RATE = 0.05
DEADLINE = 20.0
# What the first site does, by the earliest step; the rest is done to others.
OF_SITE = {
    3: "not a number",
    5: "another shape",
    7: "norm too large",
    9: "replays an old answer",
    11: "killed in mid-step",
    13: "slow",
}
LATE, NODE_KILLED, SERVER_KILLED = 0, 22, 26
_OTHERS = {LATE: "a site joins late", NODE_KILLED: "SuperNode killed", SERVER_KILLED: "server killed, restarted"}
_APP = Path(__file__).resolve().parents[1]


def main(modes: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Runs a federation for each mode.

    Args:
        modes: Trust modes. If they are `MODES`, the figures are written after each mode.
        folder: Folder for stores, parties and runs.

    Returns:
        The steps by mode, see `steps_of`.
    """
    store = shapes_store(2_000, folder / "records")
    divide_store(store.path, folder / "stores", SITES, skew=0.8)
    figures = {}
    for mode in modes:
        parties = folder / mode
        found(parties, folder / "stores", mode)
        run_federation(parties)
        figures[mode] = steps_of(parties)
        for step in figures[mode]:
            print(mode, json.dumps(step), flush=True)
        if modes == MODES:  # as far as it is
            print(write_result("federation-faults", {"deadline": DEADLINE, "steps": figures}, seeds=[]), flush=True)
    return figures


def found(parties: Path, stores: Path, mode: str) -> None:
    """Makes the folders of the coordinator and the sites.

    The plan is plain gradient descent without a checkpoint before the end, so that every step can be computed again.

    Args:
        parties: Folder for the folders of the parties.
        stores: Folder with the stores of the sites.
        mode: Trust mode.
    """
    config = load_config("configs/federation.toml").model_dump(mode="json", exclude_unset=True)
    config["data"] = {"source": "store", "path": str(stores / EVALUATION)}
    config["model"] |= {"width": 8, "text_width": 16, "text_layers": 1}
    config["bounding"] |= {"engine": "loop"}
    config["privacy"] = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 200, "steps": STEPS + 1}
    config["optimizer"] = {"name": "sgd", "momentum": 0.0, "learning_rate": RATE}
    config["training"] = {"checkpoint_every": STEPS + 2, "keep": 3, "device": "cpu"}
    config["evaluation"] = {"split": "none"}
    sites = [SiteFolder.create(parties / site_folder(n), site_folder(n), stores / site_folder(n)) for n in range(SITES)]
    options = {"trust": mode, "drops": 1, "colluders": 1, "deadline": DEADLINE}
    made = CoordinatorFolder.create(parties / "coordinator", parse_config(config), [site.card for site in sites], **options)
    for site in sites:
        site.join(Terms.load(made.terms))


def run_federation(parties: Path) -> None:
    """Runs the federation, with all its faults, to its end."""
    run, ended = RunDirectory(parties / "run"), threading.Event()
    with tempfile.TemporaryDirectory(prefix="dpfed-") as place:
        sockets = {site_folder(number): Path(place) / site_folder(number) / "door" for number in range(SITES)}
        with loopback(Path(place) / "loopback", sockets) as federation:
            *early, _ = sockets
            for name in early:
                start_worker(federation, parties, name, sockets[name])
            others = threading.Thread(target=_disturb, args=(federation, parties, sockets, ended))
            others.start()
            try:
                while not run.finished:
                    federation.submit(_APP, {"federation": str(parties / "coordinator"), "run": str(run.path)})
                    while federation.members.running(RUN) and not run.finished:
                        time.sleep(0.2)
            finally:
                ended.set()
                others.join()


def _disturb(federation: Loopback, parties: Path, sockets: dict[str, Path], ended: threading.Event) -> None:
    """Injects the faults other than those of the first site, each at its step, and copies the noisy sums.

    It also starts the third site late, and the killed SuperNode again.
    """
    run, kept = parties / "run", parties / "releases"
    _, second, third = sockets
    kept.mkdir()
    done: set[int] = set()

    def once(step: int) -> bool:
        now = max((line["step"] for line in _lines(run) if line["event"] == "opened"), default=-1)
        if now < step or step in done:
            return False
        done.add(step)
        return True

    while not ended.wait(0.05):
        for file in (run / "releases").glob("*.f32"):
            if not (kept / file.name).exists():
                (kept / file.name).hardlink_to(file)
        if once(LATE + 1):
            start_worker(federation, parties, third, sockets[third])
        if once(NODE_KILLED):
            federation.members.kill(second)
            threading.Thread(target=_bring_back, args=(federation, second), daemon=True).start()
        if once(SERVER_KILLED):
            kill_server_app(federation)


def _bring_back(federation: Loopback, name: str) -> None:
    """Starts a killed SuperNode again and again, until the SuperLink has noticed that it was gone, and accepts it."""
    federation.start_node(name)
    federation.wait_for_node(name)


def _lines(run: Path) -> list[dict[str, Any]]:
    try:
        text = (run / "federation.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def start_worker(federation: Loopback, parties: Path, name: str, socket: Path) -> None:
    """Starts a site's worker. The worker of the first site misbehaves."""
    command = ["dpfed", "site", "serve", parties / name, "--socket", socket]
    if name == site_folder(0):
        command = [sys.executable, "-m", "benchmarks.hostile_site", parties / name, socket, json.dumps(OF_SITE)]
    federation.members.start(f"{name}-worker", command, {"OMP_NUM_THREADS": "1"})
    federation.members.wait_for(f"{name}-worker", "ready", 300.0)


def steps_of(parties: Path) -> list[dict[str, Any]]:
    """Returns what happened in each step, and how much noise the released sum had.

    Args:
        parties: Folder of the parties, after `run_federation`.

    Returns:
        For each step: ``fault``, ``outcome``, ``arrived``, ``missing``, ``noise`` (variance of the noise in the released sum,
        over the planned variance), ``tolerance`` (five standard deviations of ``noise``) and ``charged`` (whether the step is
        charged in the run's ledger, and in the ledger of each site).
    """
    run, terms = RunDirectory(parties / "run"), Terms.load(parties / "coordinator" / "terms.json")
    plan, ledger = terms.privacy_plan, Ledger.open(run.ledger)
    ledgers = [Ledger.open(SiteFolder.open(parties / site_folder(number)).ledger) for number in range(SITES)]
    outcomes = {line["step"]: line for line in Journal(run.journal).lines if line["event"] != "opened"}
    workers = [_worker(SiteFolder.open(parties / site_folder(number)), terms) for number in range(SITES)]
    parts = build(run.config(), None, terms=terms)
    coordinator = parts.learner.coordinator(workers[0][2], Ledger.create(parties / "again.jsonl", plan))
    Checkpoints(run.checkpoints, 3).load(Checkpoints(run.checkpoints, 3).paths()[0], parts.model, coordinator)
    parameters, steps = TrainableVector(parts.model).gather(), []
    faults = _OTHERS | dict(done_in(SiteFolder.open(parties / site_folder(0))))
    for step in range(STEPS):
        outcome = outcomes[step]
        figures = {"step": step, "fault": faults.get(step, ""), "outcome": outcome["event"]}
        figures |= {name: outcome.get(name) for name in ("arrived", "missing")}
        if outcome["event"] == "collected":
            noisy = Releases(parties / "releases").load(step, coordinator.blocks, ledger.release_of(step).digest)
            clean = torch.zeros(parameters.numel(), dtype=torch.float64)
            for number, (worker, vector, _) in enumerate(workers):
                if site_folder(number) in outcome["arrived"]:
                    vector.assign(parameters)
                    clean += worker.bounded_sum(step).numbers()
            figures["noise"] = round(((noisy - clean).square().mean() / plan.noise_std**2).item(), 4)
            figures["tolerance"] = round(5 * figures["noise"] * math.sqrt(2 / len(noisy)), 4)
            parameters = parameters - RATE * (noisy / plan.groups)
        figures["charged"] = [book.release_of(step) is not None for book in (ledger, *ledgers)]
        steps.append(figures)
    return steps


def _worker(folder: SiteFolder, terms: Terms) -> tuple[Any, TrainableVector, Any]:
    """Rebuilds a site's worker from the site's folder; returns the worker, its parameters, and its randomness."""
    number, randomness = terms.number_of(folder.identity().signing_key), folder.randomness()
    parts = build(site_config(terms, folder.settings()), randomness, terms=terms)
    partition = Partition(number, parts.store.split("train"), terms.sites[number].groups)
    return parts.learner.worker(randomness, partition=partition), TrainableVector(parts.model), randomness


if __name__ == "__main__":
    chosen = tuple(sys.argv[1:]) or MODES
    with tempfile.TemporaryDirectory(prefix="dpfed-faults-") as place:
        main(chosen, Path(place))
