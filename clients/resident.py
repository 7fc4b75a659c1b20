"""Runs a SuperNode's ClientApp in one process that stays, and from the code that is installed at the site.

Left to itself, a SuperNode starts a process for every message and runs in it the code that came with the run: a message takes
seconds longer, and whoever may start a run may run anything at every site. With ``--isolation process`` a SuperNode leaves that
to another program, which is this one:

    python -m clients.resident --runtime-api-address 127.0.0.1:9200 --superexec-auth-secret-file FILE

It takes the place of ``flower-superexec`` and ``flwr-clientapp``, ignores the code that came, and calls `clients.app`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from pathlib import Path

import httpx

from clients.app import app
from dpfed.errors import UserError
from dpfed.federation.flower.internals import SuperNode, Task, shorten_fetching

_MOST = 64  # messages at a time, nearly all of which wait for the rest of themselves
_PAUSE = 0.05  # seconds between looks for a message
_ABSENCE = 0.5  # seconds between looks for a SuperNode that is not there
_REFUSED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)

_log = logging.getLogger(__name__)


def serve(address: str, secret: bytes) -> None:
    """Handles the messages of a SuperNode, for ever; the SuperNode may come later, and go.

    Args:
        address: of the SuperNode's Runtime API, on this machine.
        secret: shared with the SuperNode, so that no other user of the machine can take its messages.

    Raises:
        UserError: if the SuperNode does not know the secret.
    """
    room = threading.BoundedSemaphore(_MOST)
    with SuperNode(address, secret) as supernode:
        while True:
            try:
                token = supernode.next_task()
            except httpx.HTTPError as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _REFUSED:
                    raise UserError(f"the SuperNode at {address} refuses: start both with the same secret file.") from error
                time.sleep(_ABSENCE)
                continue
            if token:
                # A thread for each: a message whose server died while sending it would hold up all others for hours.
                room.acquire()
                threading.Thread(target=_handle, args=(address, token, room), daemon=True).start()
            else:
                time.sleep(_PAUSE)


def _handle(address: str, token: str, room: threading.Semaphore) -> None:
    try:
        with Task(address, token) as task:
            _answer(task)
    except Exception as error:  # the SuperNode is gone, or knows nothing of the task any more
        _log.warning("a message was lost: %s", type(error).__name__)
    finally:
        room.release()


def _answer(task: Task) -> None:
    """One message. One that cannot be handled, perhaps because its run has ended, is given up."""
    try:
        task.handle(app)
    except Exception as error:
        _log.warning("a message was given up: %s", type(error).__name__)
        task.give_up()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m clients.resident", description="Handles a SuperNode's messages.")
    parser.add_argument("--runtime-api-address", required=True, help="the SuperNode's --host and --port, as HOST:PORT")
    parser.add_argument("--superexec-auth-secret-file", type=Path, required=True, help="the same file as the SuperNode's")
    options = parser.parse_args()
    shorten_fetching()
    try:
        serve(options.runtime_api_address, options.superexec_auth_secret_file.read_bytes())
    except (UserError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
