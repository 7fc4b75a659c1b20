"""The page's server: one process, which holds no key and no record.

Everybody who is connected to the page: whoever connects and says nothing keeps nobody else out.

A connection costs the server a file descriptor, and there are a thousand of them on most systems. A program that opens
connections and is silent, or says one letter a minute, would take them all. So there is a limit, and one more connection ends
the oldest that is not being answered. An honest browser that loses an idle connection opens another one.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from dpfed.errors import UserError
from dpfed.federation.provisioning.certificates import certificates_in
from dpfed.live.access import Access
from dpfed.live.gathering import Gathering


def listen(gathering: Gathering, access: Access, pictures: Path | None, ready: Callable[[str], None]) -> None:
    """Serves the page until the process is told to end.

    Args:
        gathering: of the runs.
        access: where, and for whom.
        pictures: a public store to search by text.
        ready: called with the address, token included, once the port is open.

    Raises:
        UserError: if a package is missing, the port is taken, or the certificate is no good.
    """
    try:
        import uvicorn

        from dpfed.live.app import application
        from dpfed.live.retrieval import Retrieval
    except ImportError as error:
        raise UserError(f"the page needs the package {error.name}; install dpfed[live].") from error
    if access.certificate is not None:
        _refuse_dates(access.certificate)
    bound = Listener(socket.AF_INET6 if ":" in access.host else socket.AF_INET)
    config = uvicorn.Config(
        bound.answering(application(gathering, access, Retrieval(pictures))),
        ssl_certfile=access.certificate,
        ssl_keyfile=access.key,
        log_level="critical",
        access_log=False,  # the first address holds the token
        server_header=False,
        date_header=False,
        lifespan="off",
        ws="none",
        http="h11",  # which bounds how long the head of a request may be
        loop="asyncio",  # which asks the listener for connections
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    try:
        config.load()
    except (OSError, ValueError) as error:  # of ssl
        bound.close()
        raise UserError(f"{access.certificate} and {access.key} are no certificate with its key: {error}.") from error
    with _bound(bound, access):
        host, port = access.host, bound.getsockname()[1]
        place = f"[{host}]" if ":" in host else host
        ready(f"{access.scheme}://{place}:{port}/?token={access.token}")
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn has ended in good order, and says that it was asked to
            uvicorn.Server(config).run(sockets=[bound])


def _refuse_dates(certificate: Path) -> None:
    """Refuses a certificate with which no browser would show the page."""
    own, now = certificates_in(certificate)[0], datetime.datetime.now(datetime.UTC)
    if now > (end := own.not_valid_after_utc):
        raise UserError(f"{certificate} has expired on {end:%Y-%m-%d}: browsers refuse it; give one that is valid.")
    if now < (start := own.not_valid_before_utc):
        raise UserError(
            f"{certificate} is valid from {start:%Y-%m-%d}, which is in the future: look at this machine's clock, or give "
            "another one."
        )


def _bound(bound: socket.socket, access: Access) -> socket.socket:
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((access.host.strip("[]"), access.port))
        bound.listen()  # whoever reads the address at once waits until the server answers
    except OSError as error:
        bound.close()
        reason = "another program has it" if error.errno == errno.EADDRINUSE else error.strerror or error
        raise UserError(f"cannot listen on {access.host}:{access.port}: {reason}; choose another --port or --host.") from error
    return bound


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
