"""A round of dpfed's in `secure` mode beside Flower's federated averaging, plain and with SecAgg+, by the size of the update.

Three sites, a process for every party, SuperLink and SuperNodes over TLS with node authentication on this machine. Flower's
own rounds run as Flower comes: `flower-supernode`, which starts a process for every message. Its clients compute nothing; of
ours, the gradients are taken off.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks import federation
from benchmarks.peers.environment import ROOT
from benchmarks.peers.results import keep, kept
from dpfed.data.generated.shapes import shapes_store
from dpfed.data.store.division import divide_store, site_folder
from dpfed.federation.demo.loopback import RUN, Loopback
from dpfed.federation.demo.processes import processes

WIDTHS = {1: 9, 10: 30, 45: 64}  # of a ResNet-18, by the megabytes of its update
ROUNDS = 3  # behind one that warms up
_HOST, _START = "127.0.0.1", 120.0  # seconds


class Stock(Loopback):
    """SuperNodes as Flower's documentation starts them."""

    def start_node(self, name: str, port: int | None = None) -> None:
        """See `Loopback`."""
        config = self._folder / f"{name}.toml"
        config.write_text(tomli_w.dumps({"name": name}))
        command = ["flower-supernode", "--root-certificates", self.certificates / "ca.crt", "--node-config", config]
        command += ["--superlink", f"{_HOST}:{port or self.port}", "--host", _HOST, "--port", self._ports[name]]
        command += ["--auth-supernode-private-key", self.certificates / name]
        self._through[name] = port
        self.members.start(name, command, self._environment(name))


def measure(again: bool) -> None:
    """The sizes that are not there yet, or all."""
    for megabytes, width in WIDTHS.items():
        name = f"{megabytes} MB"
        if again or name not in kept("federation"):
            found = {**ours(width, ROUNDS), **flowers(megabytes, ROUNDS)}
            print(name, json.dumps(found), flush=True)
            keep("federation", {name: {"contenders": found}}, sites=federation.SITES, rounds=ROUNDS)


def ours(width: int, rounds: int) -> dict[str, Any]:
    """Seconds of dpfed's rounds, without the gradients of the slowest site."""
    with tempfile.TemporaryDirectory(prefix="dpfed-") as place:
        folder = Path(place)
        store = shapes_store(federation.RECORDS, folder / "records")
        divide_store(store.path, folder / "stores", federation.SITES, skew=0.0)
        federation.found(folder / "parties", folder / "stores", "secure", width, federation.COLD + rounds)
        federation.carry_out(folder / "parties")
        turns = _lines(folder / "parties" / "server.jsonl")[federation.COLD :]
        sites = [_lines(folder / "parties" / f"{site_folder(number)}.jsonl") for number in range(federation.SITES)]
    computing = {
        turn["step"]: max(
            line["compute"] for site in sites for line in site if line.get("step") == turn["step"] and "compute" in line
        )
        for turn in turns
    }
    seconds = [turn["collect"] + turn["apply"] - computing[turn["step"]] for turn in turns]
    return {"dpfed, secure": {"seconds": seconds, "gradients": statistics.median(computing.values())}}


def flowers(megabytes: float, rounds: int) -> dict[str, Any]:
    """Seconds of Flower's rounds."""
    with tempfile.TemporaryDirectory(prefix="dpfed-") as place:
        names = {site_folder(number): Path(place) for number in range(federation.SITES)}
        file = Path(place) / "rounds.jsonl"
        with processes(Path(place) / "logs") as members:
            loopback = Stock(Path(place) / "loopback", names, members)
            loopback.start()
            task = {"megabytes": float(megabytes), "rounds": rounds, "file": str(file)}
            loopback.submit(ROOT / "benchmarks" / "peers" / "flower_app", task)
            while members.running(RUN):
                time.sleep(0.2)
            turns = _lines(file) if file.exists() else []
            if len(turns) != 2 * (1 + rounds):
                raise SystemExit(members.text(RUN))
    return {
        f"Flower, {name}": {"seconds": [turn["seconds"] for turn in turns if turn["round"] == name][1:]}
        for name in ("FedAvg", "SecAgg+")
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
