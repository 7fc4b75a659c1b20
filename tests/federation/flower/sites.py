"""Sites whose workers are threads of the test: they echo, unless told otherwise."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from dpfed.federation.site.local_socket import serve
from dpfed.protocol.messages import Packet
from tests.patience import at_most


class Sites:
    """A context: workers behind real sockets.

    Args:
        names: of the sites.

    Attributes:
        sockets: where each one answers.
        handle: what each one does with a packet; without an entry it echoes.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sites-", dir="/tmp"))  # a socket's path must be short
        self.sockets = {name: self._folder / name / "socket" for name in names}
        self.handle: dict[str, Callable[[Packet], Packet]] = {}
        self._running: dict[str, tuple[threading.Event, threading.Thread]] = {}

    def __enter__(self) -> Sites:
        for name in self.sockets:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self.stop(name)
        shutil.rmtree(self._folder)

    def start(self, name: str) -> None:
        """Opens a site's door."""
        stop = threading.Event()

        def answer(packet: Packet) -> Packet:
            return self.handle[name](packet) if name in self.handle else packet

        thread = threading.Thread(target=serve, args=(self.sockets[name], answer, stop), daemon=True)
        thread.start()
        while not self._open(name):
            time.sleep(0.01)
        self._running[name] = stop, thread

    def stop(self, name: str) -> None:
        """Closes it."""
        stop, thread = self._running.pop(name)
        stop.set()
        thread.join(at_most(10))

    def _open(self, name: str) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.sockets[name])) == 0
