"""A federation on machines that are apart, made by the commands of docs/a-site-in-15-minutes.md and started by its units."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import tomli_w

from dpfed.data.store.division import EVALUATION, divide_store, site_folder
from tests.apart.machines import Machine, Switch
from tests.federation.flower.provisioned import start_unit
from tests.federation.provisioning.office import PLAN

SITES = ("north", "south", "west")
PORT = 9443
_PRINT = "[0-9a-f]{4}(?: [0-9a-f]{4})+"
_UNIT = 'while :; do "$@"; code=$?; test $code = 2 && exit; sleep 5; done'  # Restart= and RestartSec=, of systemd


class Units:
    """Starts what units start on a machine, and again when it ends; takes the place of `Processes`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        """See `Processes`."""
        self._machine.start(name, "bash", "-c", _UNIT, name, *command, **environment)


class Federation:
    """A coordinator behind nginx, and three sites.

    Args:
        switch: they are plugged into it.
        folder: for the records.
        shapes: a store, divided among the sites.
        steps: of the run.
        project: keys of the project.
    """

    def __init__(self, switch: Switch, folder: Path, shapes: Path, steps: int, **project: object) -> None:
        self.switch, self.coordinator = switch, switch.machine("coordinator")
        self.sites = {name: switch.machine(name) for name in SITES}
        self.chest = self.coordinator.home / "chest"
        self.places = {name: machine.home / f"chest-{name}" for name, machine in self.sites.items()}
        divide_store(shapes, folder / "stores", len(SITES), 0.8)
        data = {"source": "store", "path": str(folder / "stores" / EVALUATION), "size": 16}
        plan = {**PLAN, "privacy": {**PLAN["privacy"], "steps": steps}, "data": data}
        plan["evaluation"] = {**PLAN["evaluation"], "every": steps}
        (self.coordinator.home / "plan.toml").write_text(tomli_w.dumps(plan))
        made = {"name": "chest", "config": "plan.toml", "host": self.coordinator.address, "port": PORT, "sites": list(SITES)}
        (self.coordinator.home / "project.toml").write_text(tomli_w.dumps({**made, **project}))
        self._sign_up(folder / "stores")
        self.start_coordinator()
        for name in SITES:
            self.start_site(name)

    def start_coordinator(self) -> None:
        """Proxy, SuperLink and run, in no order that matters."""
        machine = self.coordinator
        http = f"daemon off; pid {machine.home}/nginx.pid; events {{}} http {{ include {self.chest}/proxy.conf; }}"
        (machine.home / "nginx.conf").write_text(http)
        machine.start("proxy", "nginx", "-c", machine.home / "nginx.conf", "-e", "stderr", "-g", "user root;")
        for program in ("superlink", "run"):
            start_unit(Units(machine), program, self.chest / "systemd" / f"dpfed-{program}@.service", self.chest)

    def start_site(self, name: str) -> None:
        """Worker, SuperNode and app."""
        place = self.places[name]
        for program in ("worker", "node", "app"):
            unit = place / "systemd" / f"dpfed-{program}@.service"
            start_unit(Units(self.sites[name]), program, unit, place, **{"dpfed-node": "root"})

    def journal(self, event: str = "") -> list[dict]:
        """What the coordinator wrote of steps."""
        file = self.chest / "run" / "federation.jsonl"
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        return [line for line in map(json.loads, lines) if event in ("", line["event"])]

    def in_step(self, *names: str) -> Callable[[], bool | None]:
        """Whether a step that comes after now was collected from exactly these sites, for `until`."""
        before = len(self.journal("collected"))
        return lambda: any(line["arrived"] == list(names) for line in self.journal("collected")[before:]) or None

    def said(self) -> str:
        """What the operator of the coordinator sees."""
        return self.coordinator.text("run")

    def doctor(self, name: str) -> dict[str, dict]:
        """What `dpfed site doctor` finds at a site, by name."""
        done = self.sites[name].run("dpfed", "site", "doctor", self.places[name], "--json", check=False)
        return {finding["about"]: finding for finding in json.loads(done.stdout.splitlines()[-1])}

    def _sign_up(self, stores: Path) -> None:
        machine = self.coordinator
        said = machine.run("dpfed", "federation", "provision", "project.toml").stdout
        fingerprint = re.search(rf"read out +({_PRINT})", said)[1]
        cards = {}
        for number, (name, site) in enumerate(self.sites.items()):
            shutil.copy(self.chest / "kits" / f"chest-{name}.kit.json", site.home)
            store = stores / site_folder(number)
            words = ["--coordinator", fingerprint, "--store", store, "--budget", 8]
            said = site.run("dpfed", "site", "setup", f"chest-{name}.kit.json", *words).stdout
            cards[name] = re.search(rf"telephone: ({_PRINT})", said)[1]
            shutil.copy(self.places[name] / "reply.json", self.chest / "replies" / f"{name}.json")
        machine.run("dpfed", "federation", "provision", "project.toml")
        for name, site in self.sites.items():
            shutil.copy(self.chest / "kits" / f"chest-{name}.kit.json", site.home)
            site.run("dpfed", "site", "confirm", self.places[name], *(card for other, card in cards.items() if other != name))
            site.run("dpfed", "site", "join", "--yes", self.places[name], f"chest-{name}.kit.json")


def no_proxy_server() -> str:
    """Why there is no proxy in front of the SuperLink; empty: there is."""
    return "" if shutil.which("nginx") else "nginx is not installed"
