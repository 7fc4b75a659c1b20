"""A site worker that says how long its answers took: `python -m benchmarks.timed_site FOLDER DOOR PORT FILE`.

It answers like `dpfed site serve`, and two more things that only a benchmark asks for. What comes under the header `ECHO` goes
back, as long and with other bytes, for Flower does not carry again what it has carried. The same over TLS at a port, without
Flower. Each answer of the protocol's adds a line to a file. `benchmarks.federation` starts it.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
import time
from pathlib import Path

import numpy as np

import dpfed.federation.site.worker as site_worker
from benchmarks.stopwatch import Stopwatch
from dpfed.federation.protocol.messages import Packet, alleged, receive_packet, send_packet
from dpfed.federation.site.folder import SiteFolder
from dpfed.federation.site.local_socket import serve
from dpfed.federation.site.serving import load_site
from dpfed.federation.site.worker import SiteWorker
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.training.worker import Worker

ECHO = b"echo"
# What an answer consists of. `protect` is encoding, and where the sites add noise or masks, those.
PARTS = {
    "verify": (site_worker, "verify"),
    "decode": (site_worker, "decoded"),
    "assign": (TrainableVector, "assign"),
    "compute": (Worker, "bounded_sum"),
    "protect": (SiteWorker, "_protected"),
    "ledger": (Ledger, "charge"),
    "offer": (SiteWorker, "_offer"),
    "sign": (SiteWorker, "_signed"),
}


class TimedSite:
    """Answers like a site, and echoes.

    Args:
        folder: of the site.
        file: gets a line for each answer of the protocol's.
    """

    def __init__(self, folder: SiteFolder, file: Path) -> None:
        self._site, self._file, self._watch = load_site(folder, print), file, Stopwatch(PARTS)

    def answer(self, packet: Packet) -> Packet:
        """The site's answer, or an echo."""
        if packet.header == ECHO:
            return echo(packet)
        self._watch.take()
        started = time.perf_counter()
        reply = self._site.answer(packet)
        line = {"kind": alleged(packet).get("kind"), "step": alleged(packet).get("step")}
        line |= {"answer": time.perf_counter() - started, **self._watch.take()}
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return reply


def echo(packet: Packet) -> Packet:
    """As many bytes, none of them the same."""
    return Packet(ECHO, b"", (np.frombuffer(packet.vector, np.uint8) + np.uint8(1)).data)


def serve_tls(port: int, certificates: Path) -> None:
    """Echoes packets over TLS, one connection after the other, for ever."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            with context.wrap_socket(connection, server_side=True) as sock:
                send_packet(sock, echo(receive_packet(sock)))


def main() -> None:
    """Serves until it is killed."""
    folder, door, port, certificates, file = sys.argv[1:]
    site = TimedSite(SiteFolder.open(folder), Path(file))
    threading.Thread(target=serve_tls, args=(int(port), Path(certificates)), daemon=True).start()
    print("ready", flush=True)
    serve(Path(door), site.answer, threading.Event())


if __name__ == "__main__":
    main()
