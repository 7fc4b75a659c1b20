"""Injects faults into a federation of three sites over Flower and TLS: server, SuperLink, SuperNodes and workers are killed,
networks are interrupted, disks get full, and a checkpoint is damaged. The finished run is compared with an undisturbed run
(`benchmarks.torture.followed`).
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.torture.followed import follow
from benchmarks.torture.machine import filled, small_disk
from benchmarks.torture.undisturbed import outcome_of, wrong_at_the_end
from benchmarks.torture.wire import Wire
from dpfed.artifacts.directory import RunDirectory
from dpfed.config import load_config, parse_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.division import EVALUATION, divide_store, site_folder
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.demo.loopback import RUN, SUPERLINK, Loopback
from dpfed.federation.demo.processes import processes
from dpfed.federation.site.folder import SiteFolder
from dpfed.privacy.ledger import Ledger
from dpfed.protocol.journal import Journal
from dpfed.protocol.terms import Terms
from dpfed.training.checkpoint import Checkpoints

SITES, DEADLINE = 3, 8.0
_APP = Path(__file__).resolve().parents[2]
_OUT = 4.0  # seconds for which something is away


class Proxied(Loopback):
    """A federation on one machine whose SuperNodes connect to the SuperLink through connections that can be interrupted.

    Attributes:
        wires: Connection (`Wire`) of each SuperNode, by the site's name.
    """

    def start(self) -> None:
        """See `Loopback`."""
        if not hasattr(self, "wires"):
            self.wires = {name: Wire(self.port) for name in self._sockets}
        super().start()

    def start_node(self, name: str, port: int | None = None) -> None:
        """See `Loopback`."""
        super().start_node(name, port or self.wires[name].port)


def kill_server_app(federation: Loopback) -> None:
    """Kills the process in which the ServerApp runs (SIGKILL)."""
    for pid in federation.members.descendants(SUPERLINK, "flwr-serverapp"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Torment:
    """A running federation, and the faults that can be injected into it.

    Args:
        folder: Folder for all files.
        dice: Random generator that decides to which party a fault happens.
        steps: Number of steps of the run.
        mode: Trust mode.
        disk: Small disk for the run; ``None``: this user may not mount one.
    """

    def __init__(self, folder: Path, dice: random.Random, steps: int, mode: str, disk: Path | None) -> None:
        self._folder = folder
        self._dice = dice
        self._steps = steps
        self._disk = disk
        self.run = RunDirectory((disk or folder) / "run")
        self.places = {site_folder(n): folder / site_folder(n) for n in range(SITES)}
        self._found(mode)
        self.key = b""
        self._threads: list[threading.Thread] = []

    def run(self, plan: list[tuple[int, str]]) -> None:
        """Runs the federation to its end, and injects faults.

        Args:
            plan: Pairs of a step and a fault, in the order of steps; a fault is injected once its step has begun.
        """
        left = list(plan)
        with contextlib.ExitStack() as stack:
            sockets = {name: self._folder / "doors" / name / "door" for name in self.places}
            members = stack.enter_context(processes(self._folder / "logs"))
            self.federation = federation = Proxied(self._folder / "loopback", sockets, members)
            federation.start()
            self._doors = sockets
            for name in sockets:
                self._serve(name)
            while not self.run.finished:
                federation.submit(_APP, {"federation": str(self._folder / "coordinator"), "run": str(self.run.path)})
                while federation.members.running(RUN) and not self.run.finished:
                    self._keep_key()
                    self._revive()
                    if left and self._step() >= left[0][0]:
                        time.sleep(self._dice.uniform(0, 1))
                        getattr(self, _DEEDS[left.pop(0)[1]])()
                    time.sleep(0.05)
            for thread in self._threads:
                thread.join()
            for wire in federation.wires.values():
                wire.close()
        if left:
            raise SystemExit(f"the run ended before these were done: {left}")

    def kill_server(self) -> None:
        """Kills the process of the ServerApp."""
        kill_server_app(self.federation)

    def damage_checkpoint(self) -> None:
        """Kills the ServerApp, and damages the newest checkpoint, from which it would continue."""
        kill_server_app(self.federation)
        paths = Checkpoints(self.run.checkpoints, 2).paths()
        paths[-1].write_bytes(paths[-1].read_bytes()[:2000])

    def kill_link(self) -> None:
        """Kills the SuperLink and all processes that it started, and starts it again."""
        federation = self.federation
        for name in (*federation.wires, SUPERLINK):
            federation.members.kill(name)
        federation.start()  # it has forgotten its SuperNodes, so they are registered and started anew, too
        self.federation.members.kill(RUN)

    def kill_node(self) -> None:
        """Kills a SuperNode, and starts it again and again until the SuperLink accepts it."""
        name = self._one()
        self.federation.members.kill(name)
        self.federation.start_node(name)
        self._later(self.federation.wait_for_node, name)

    def kill_worker(self) -> None:
        """Kills the worker of a site; `_revive` starts it again."""
        self.federation.members.kill(f"{self._one()}-worker")

    def cut_one(self) -> None:
        """Ends a site's connections for a while."""
        self._dropped([self._one()], Wire.cut)

    def hush_one(self) -> None:
        """Lets nothing from or to a site through for a while, longer than a step waits for it."""
        self._dropped([self._one()], Wire.hush, DEADLINE + 2)

    def cut_all(self) -> None:
        """Ends the connections of all sites for a while."""
        self._dropped(list(self.places), Wire.cut)

    def fill_site(self) -> None:
        """Limits a site's ledger for three steps, so that the kernel accepts only a part of its next line."""
        name = self._one()
        pid, most = self.federation.members.pid(f"{name}-worker"), SiteFolder(self.places[name]).ledger.stat().st_size + 10
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        self._let_pass(3)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def fill_server(self) -> None:
        """Fills the disk of the run, so that the server ends; once there is room again, the server is started again."""
        if self._disk is None:
            return self.kill_server()
        with filled(self._disk):
            self._let_pass(3)

    def _let_pass(self, steps: int) -> None:
        step, deadline = self._step(), time.monotonic() + 3 * DEADLINE
        while self._step() < step + steps and time.monotonic() < deadline and self.federation.members.running(RUN):
            time.sleep(0.05)

    def _dropped(self, names: list[str], how: Callable[[Wire], None], seconds: float = _OUT) -> None:
        wires = [self.federation.wires[name] for name in names]
        for wire in wires:
            how(wire)
        time.sleep(seconds)
        for wire in wires:
            wire.mend()

    def _one(self) -> str:
        return self._dice.choice(sorted(self.places))

    def _later(self, act: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=act, args=arguments))
        self._threads[-1].start()

    def _revive(self) -> None:
        for name in self.places:
            if not self.federation.members.running(f"{name}-worker"):
                self._serve(name)

    def _serve(self, name: str) -> None:
        command = ["dpfed", "site", "serve", self.places[name], "--socket", self._doors[name]]
        self.federation.members.start(f"{name}-worker", command, {"OMP_NUM_THREADS": "1"})

    def _keep_key(self) -> None:
        """Keeps the run's secret key for the undisturbed run; the run deletes the key at its end."""
        if not self.key:
            with contextlib.suppress(OSError):
                self.key = (self.run.path / "secret.key").read_bytes()

    def _step(self) -> int:
        with contextlib.suppress(OSError):
            return sum(b'"opened"' in line for line in self.run.journal.read_bytes().split(b"\n")[:-1])
        return -1

    def _found(self, mode: str) -> None:
        """Makes the records, and the folders of all parties."""
        write_shapes(self._folder / "records", train=360, validation=0, test=60)
        divide_store(self._folder / "records", self._folder / "stores", SITES, skew=0.5)
        tree = load_config("configs/federation.toml").model_dump(mode="json", exclude_unset=True)
        tree["data"] = {"source": "store", "path": str(self._folder / "stores" / EVALUATION)}
        tree["model"] |= {"width": 8, "text_width": 16, "text_layers": 1}
        tree["bounding"] |= {"engine": "loop"}
        tree["privacy"] = {"noise_multiplier": 2.0, "accountant": "rdp", "batch": 36, "steps": self._steps}
        tree["training"] = {"checkpoint_every": 4, "device": "cpu"}
        tree["evaluation"] = {"tasks": ["retrieval"], "records": 40}
        sites = [
            SiteFolder.create(place, name, self._folder / "stores" / name, engine="loop", device="cpu")
            for name, place in self.places.items()
        ]
        options = {"trust": mode, "drops": 1, "colluders": 1, "deadline": DEADLINE}
        cards = [site.card for site in sites]
        made = CoordinatorFolder.create(self._folder / "coordinator", parse_config(tree), cards, **options)
        for site in sites:
            site.join(Terms.load(made.terms))


_DEEDS = {
    "server killed": "kill_server",
    "site's worker killed": "kill_worker",
    "SuperNode killed": "kill_node",
    "SuperLink killed": "kill_link",
    "network of a site cut": "cut_one",
    "network of a site silent": "hush_one",
    "network of all sites cut": "cut_all",
    "newest checkpoint damaged": "damage_checkpoint",
    "disk of a site full": "fill_site",
    "disk of the server full": "fill_server",
}
FAULTS = tuple(_DEEDS)


def torture(folder: Path, dice: random.Random, faults: tuple[str, ...] = FAULTS, mode: str = "secure") -> dict[str, Any]:
    """Injects faults into a federation, and returns what it lost.

    Args:
        folder: New folder for all files.
        dice: Random generator that decides when, and to which party, a fault happens.
        faults: Faults, of `FAULTS`; injected in a random order.
        mode: Trust mode in which a site may be missing in a step.

    Returns:
        The injected faults, the outcome of the steps, and all that is wrong.
    """
    os.environ["DPFED_BUDGETS"] = str(folder / "budgets")
    order = dice.sample(faults, len(faults))
    plan = [(6 + 5 * number + dice.randrange(4), fault) for number, fault in enumerate(order)]
    steps = 6 + 5 * len(order) + 8
    with small_disk(folder / "disk") as disk:
        torment = Torment(folder, dice, steps, mode, disk)
        torment.run(plan)
        undisturbed = follow(torment.run, folder / "coordinator", torment.places, torment.key, folder / "undisturbed")
        wrong = wrong_at_the_end(torment.run.path, outcome_of(undisturbed.path))
        lines = {line["step"]: line for line in Journal(torment.run.journal).lines}
        wrong += list(_unpaid(torment, lines, steps))
        if wrong and disk:
            shutil.copytree(disk, folder / "kept")  # the disk itself is gone in the end
        collected = [line for line in lines.values() if line["event"] == "collected"]
        discarded = {str(step): line["reason"] for step, line in lines.items() if line["event"] == "discarded"}
        ledger = Ledger.open(torment.run.ledger)
        return {
            "trust": mode,
            "steps": steps,
            "faults": [{"from step": step, "what": what} for step, what in plan],
            "discarded, and paid for": discarded,
            "steps without a site": sum(len(line["arrived"]) < SITES for line in collected),
            "resumed": len(ledger.resumed),
            "replayed": ledger.replays,
            "wrong": wrong,
        }


def _unpaid(torment: Torment, lines: dict[int, dict[str, Any]], steps: int) -> Iterator[str]:
    """Yields a complaint for each step that a ledger should have charged and did not: the run's ledger, or that of a site."""
    ledger = Ledger.open(torment.run.ledger)
    yield from (f"the run has not paid for step {step}" for step in range(steps) if ledger.release_of(step) is None)
    for name, place in torment.places.items():
        site_ledger = Ledger.open(SiteFolder(place).ledger)
        for step, line in lines.items():
            if name in (line.get("arrived") or []) and site_ledger.release_of(step) is None:
                yield f"{name} answered step {step} and has not paid for it"
