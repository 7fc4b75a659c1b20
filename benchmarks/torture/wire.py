"""A network connection between two parties that a test can interrupt."""

from __future__ import annotations

import contextlib
import socket
import threading

_HOST = "127.0.0.1"
_CHUNK = 1 << 16


class Wire:
    """Forwards connections from one port of this machine to another, until `cut` or `hush` is called.

    Args:
        target: Port to which connections are forwarded.

    Attributes:
        port: Port that accepts connections.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._open, self._flows = True, threading.Event()
        self._flows.set()
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Closes all connections, and from now on every new connection at once."""
        self._open = False
        for end in list(self._ends):
            _close(end)

    def hush(self) -> None:
        """Forwards nothing any more but keeps the connections open, as if the route was lost."""
        self._flows.clear()

    def mend(self) -> None:
        """Forwards connections again, after `cut` or `hush`."""
        self._open = True
        self._flows.set()

    def close(self) -> None:
        """Closes all connections and the port."""
        self.cut()
        self._flows.set()
        _close(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        try:
            if not self._open:
                raise ConnectionRefusedError
            far = socket.create_connection((_HOST, self._target))
        except OSError:
            return _close(near)
        self._ends |= {near, far}
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(_CHUNK):
                self._flows.wait()
                sink.sendall(content)
        for end in (source, sink):
            _close(end)
            self._ends.discard(end)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
