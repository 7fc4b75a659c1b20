"""A federation's run whose rounds take turns with what a round consists of. `benchmarks/round_app` runs it inside Flower.

A SuperNode looks for messages every 3 seconds while there are none, and at once after it has answered one. So how long an
exchange takes depends on when the one before it ended. Before each timed exchange an empty one that does not count is made,
which puts all of them into the same place: directly behind another exchange, as the rounds of a run are.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dpfed.federation.coordinator.rounds as rounds
from benchmarks.stopwatch import Stopwatch
from benchmarks.timed_site import ECHO
from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.federation.coordinator.journal import Journal
from dpfed.federation.coordinator.rounds import Federation
from dpfed.federation.flower.channel import FlowerChannel
from dpfed.federation.flower.server_app import coordinate
from dpfed.federation.protocol.messages import Packet, receive_packet, send_packet
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.training.coordinator import Coordinator, StepSummary
from dpfed.training.releases import Releases

_PATIENCE = 120.0  # seconds
# What the server does in a round. `collect` has all of it down to `journal` in it, `apply` the rest. `unmask`, of secure sums,
# has another exchange in it.
PARTS = {
    "collect": (Federation, "collect"),
    "encode": (rounds, "encoded"),
    "sign": (Federation, "_signed"),
    "push": (FlowerChannel, "_push"),
    "verify": (Federation, "_read"),
    "check": (Federation, "_checked"),
    "add": (Federation, "_sum"),
    "unmask": (Federation, "_unmasked"),
    "journal": (Journal, "write"),
    "apply": (Coordinator, "apply"),
    "noise": (Randomness, "add_normal_"),
    "keep": (Releases, "save"),
    "ledger": (Ledger, "charge"),
}


class TakingTurns:
    """Makes an empty round and raw transfers before each real round of a federation.

    Args:
        channel: that the federation uses.
        ports: of the sites' echoes over TLS.
        authority: certificate that signed theirs.
        file: gets a line for each step: seconds of all parts.
    """

    def __init__(self, channel: FlowerChannel, ports: list[int], authority: Path, file: Path) -> None:
        self._channel, self._ports, self._file, self._watch = channel, ports, file, Stopwatch(PARTS)
        self._tls = ssl.create_default_context(cafile=authority)
        self._seconds: dict[str, float] = {}  # of the latest turn
        self._collect, self._apply = Federation.collect, Coordinator.apply
        Federation.collect = lambda federation, step: self._before(federation, step)
        Coordinator.apply = lambda coordinator, step, total: self._after(coordinator, step, total)

    def _before(self, federation: Federation, step: int) -> BoundedSum | None:
        vector = os.urandom(4 * federation._vector.numel)
        self._echo(b"")
        self._seconds = {"empty": self._echo(b""), "flower": self._echo(vector), "tls": self._over_tls(vector)}
        self._echo(b"")
        self._watch.take()
        return self._collect(federation, step)

    def _after(self, coordinator: Coordinator, step: int, total: BoundedSum) -> StepSummary:
        summary = self._apply(coordinator, step, total)
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **self._seconds, **self._watch.take()}) + "\n")
        return summary

    def _echo(self, vector: bytes) -> float:
        """Seconds that it takes to send a vector to every site through Flower and to get as much back."""
        started = time.perf_counter()
        packet = Packet(ECHO, b"", vector)
        answers = dict(self._channel.exchange(dict.fromkeys(self._channel.sites(), packet), _PATIENCE))
        if [len(answer.vector) for answer in answers.values() if answer] != [len(vector)] * len(self._ports):
            raise RuntimeError("a site did not answer")
        return time.perf_counter() - started

    def _over_tls(self, vector: bytes) -> float:
        """The same through nothing but a TLS connection to each site."""

        def there_and_back(port: int) -> int:
            with (
                socket.create_connection(("127.0.0.1", port)) as plain,
                self._tls.wrap_socket(plain, server_hostname="localhost") as sock,
            ):
                send_packet(sock, Packet(ECHO, b"", vector))
                return len(receive_packet(sock).vector)

        started = time.perf_counter()
        with ThreadPoolExecutor(len(self._ports)) as pool:
            list(pool.map(there_and_back, self._ports))
        return time.perf_counter() - started


def carry_out_timed(task: Path, channel: FlowerChannel) -> None:
    """A new run.

    Args:
        task: a JSON file: ``coordinator``, ``run``, ``ports``, ``authority`` and ``file``, see `TakingTurns`.
        channel: reaches the sites.
    """
    given = json.loads(task.read_text(encoding="utf-8"))
    TakingTurns(channel, given["ports"], Path(given["authority"]), Path(given["file"]))
    coordinate(Path(given["coordinator"]), Path(given["run"]), channel, Silent())
