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

import dpfed.federation.rounds as rounds
from benchmarks.stopwatch import Stopwatch
from benchmarks.timed_site import ECHO
from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.federation.folders import CoordinatorFolder
from dpfed.federation.journal import Journal
from dpfed.federation.packets import Packet, receive_packet, send_packet
from dpfed.federation.rounds import Federation
from dpfed.federation.terms import Terms
from dpfed.models.parameters import TrainableVector
from dpfed.pretraining import Job, begin, carry_out
from dpfed.privacy.ledger import Ledger
from dpfed.randomness import Randomness
from dpfed.training.coordinator import Coordinator, StepSummary
from dpfed.training.releases import Releases
from dpfed.watching import Silent
from server.channel import FlowerChannel

_PATIENCE = 120.0  # seconds
# What the server does in a round. `collect` has all of it down to `journal` in it, `apply` the rest.
PARTS = {
    "collect": (Federation, "collect"),
    "encode": (rounds, "encoded"),
    "seal": (Federation, "_seal"),
    "push": (FlowerChannel, "_push"),
    "verify": (rounds, "unseal"),
    "check": (Federation, "_checked"),
    "add": (Federation, "_add_up"),
    "journal": (Journal, "write"),
    "apply": (Coordinator, "apply"),
    "noise": (Randomness, "add_normal_"),
    "keep": (Releases, "save"),
    "ledger": (Ledger, "charge"),
}


class TakingTurns:
    """A `Transport` that makes an empty round and raw transfers before each real round.

    Args:
        federation: makes the real rounds.
        channel: that it uses.
        ports: of the sites' echoes over TLS.
        authority: certificate that signed theirs.
        size: bytes of the parameters, and of a sum.
        watch: times the parts of the real rounds.
    """

    def __init__(
        self, federation: Federation, channel: FlowerChannel, ports: list[int], authority: Path, size: int, watch: Stopwatch
    ) -> None:
        self._federation, self._channel, self._ports, self._size, self._watch = federation, channel, ports, size, watch
        self._tls = ssl.create_default_context(cafile=authority)
        self.seconds: dict[str, float] = {}  # of the latest turn

    def collect(self, step: int) -> BoundedSum | None:
        """See `Transport`."""
        vector = os.urandom(self._size)
        self._echo(b"")
        self.seconds = {"empty": self._echo(b""), "flower": self._echo(vector), "tls": self._over_tls(vector)}
        self._echo(b"")
        self._watch.take()
        return self._federation.collect(step)

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
        task: a JSON file: ``coordinator``, ``run``, ``ports``, ``authority``, and ``file``, which gets a line for each step.
        channel: reaches the sites.
    """
    given, watch = json.loads(task.read_text(encoding="utf-8")), Stopwatch(PARTS)
    folder = CoordinatorFolder.open(given["coordinator"])
    terms, turns = Terms.load(folder.terms), list[TakingTurns]()

    def connect(job: Job) -> TakingTurns:
        federation = Federation(terms, folder.identity(), channel, job.parts.model, Journal(job.run.journal), print)
        size = 4 * TrainableVector(job.parts.model).numel
        turns.append(TakingTurns(federation, channel, given["ports"], Path(given["authority"]), size, watch))
        return turns[0]

    def keep(summary: StepSummary) -> None:
        with open(given["file"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": summary.step, **turns[0].seconds, **watch.take()}) + "\n")

    job = begin(folder.config(), given["run"], Silent(), terms=terms)
    with job.run.locked():
        carry_out(job, Silent(), connect, [keep])
