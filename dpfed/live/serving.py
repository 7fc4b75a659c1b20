"""The page's server: one process, which holds no key and no record."""

from __future__ import annotations

import contextlib
import datetime
import errno
import socket
from collections.abc import Callable
from pathlib import Path

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
        from dpfed.live.visitors import Listener
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
