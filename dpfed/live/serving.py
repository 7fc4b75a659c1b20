"""Runs the live page's server: one process on loopback, which holds no private record, and no key but the access token."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from pathlib import Path

from dpfed.console.interruption import until_ctrl_c
from dpfed.errors import UserError
from dpfed.live.access import Access
from dpfed.live.scan import Scan

_HOST = "127.0.0.1"  # from other machines, users need a tunnel, such as SSH's


def listen(scan: Scan, access: Access, pictures: Path | None, ready: Callable[[str], None]) -> None:
    """Serves the page until the process is told to end.

    Args:
        scan: Scanner that finds and reads the runs.
        access: Port to listen on, and the token.
        pictures: Public record store to search by text; ``None``: the run's own records, if they are public.
        ready: Function that is called with the address, which includes the token, once the port is open.

    Raises:
        UserError: If a package is missing, the store of `pictures` cannot be opened or is not public, or the process cannot
            listen on the port.
    """
    try:
        import uvicorn

        from dpfed.live.app import application
        from dpfed.live.retrieval import Retrieval
    except ImportError as error:
        raise UserError(f"the page needs the package {error.name}; install dpfed[live]. [watch-package-missing]") from error
    config = uvicorn.Config(
        application(scan, access, Retrieval(pictures)),
        log_level="critical",
        access_log=False,  # the first address holds the token
        server_header=False,
        date_header=False,
        lifespan="off",
        ws="none",
        http="h11",  # h11 bounds the size of a request's head
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    with _bound(access.port) as bound:
        ready(f"http://{_HOST}:{bound.getsockname()[1]}/?token={access.token}")
        with until_ctrl_c():  # uvicorn ends in good order, and then raises the signal again
            uvicorn.Server(config).run(sockets=[bound])


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((_HOST, port))
        bound.listen()  # early requests wait until the server answers
    except OSError as error:
        bound.close()
        reason = "another program uses it" if error.errno == errno.EADDRINUSE else error.strerror or error
        raise UserError(f"cannot listen on {_HOST}:{port}: {reason}; choose another --port. [watch-port-refused]") from error
    return bound
