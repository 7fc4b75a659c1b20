"""Everybody who is connected to the page: whoever connects and says nothing keeps nobody else out.

A connection costs the server a file descriptor, and there are a thousand of them on most systems. A program that opens
connections and is silent, or says one letter a minute, would take them all. So there is a limit, and one more connection ends
the oldest that is not being answered. An honest browser that loses an idle connection opens another one.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

_CONNECTIONS = 256  # at a time
_ENDING = 32  # that were ended and are not closed yet, until no further one is accepted


class Listener(socket.socket):
    """A listening socket that ends silent connections when there are too many.

    It is asked for connections by the event loop, so all of this happens in one thread.
    """

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._open: dict[tuple[Any, ...], socket.socket] = {}  # by the address at the other end, the oldest first
        self._answered: set[tuple[Any, ...]] = set()
        self._ending: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.socket`.

        Raises:
            BlockingIOError: if the event loop should first close what was ended: it accepts all that wait at one go.
        """
        self._ending = [one for one in self._ending if one.fileno() >= 0]
        if len(self._ending) >= _ENDING:
            raise BlockingIOError
        connection, address = super().accept()
        self._open = {name: one for name, one in self._open.items() if one.fileno() >= 0}
        self._open[address[:2]] = connection
        if len(self._open) > _CONNECTIONS:
            self._end_oldest()
        return connection, address

    def answering(self, app: ASGIApp) -> ASGIApp:
        """The application, known to this listener: a connection that it answers is not silent.

        Args:
            app: an ASGI application.
        """

        async def answered(scope: Scope, receive: Receive, send: Send) -> None:
            address = tuple(scope.get("client") or ())
            self._answered.add(address)
            try:
                await app(scope, receive, send)
            finally:
                self._answered.discard(address)

        return answered

    def _end_oldest(self) -> None:
        silent = next((name for name in self._open if name not in self._answered), None)
        if silent is not None:
            ended = self._open.pop(silent)
            self._ending.append(ended)
            with contextlib.suppress(OSError):
                ended.shutdown(socket.SHUT_RDWR)  # the event loop sees the end, and closes it
