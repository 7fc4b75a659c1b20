"""Runs a SuperNode's ClientApp in one process that stays, and from the code that is installed at the site.

Left to itself, a SuperNode starts a process for every message and runs in it the code that came with the run: a message takes
seconds longer, and whoever may start a run may run anything at every site. With ``--isolation process`` a SuperNode leaves that
to another program, which is this one:

    dpfed site app --runtime-api-address 127.0.0.1:9200 --superexec-auth-secret-file FILE

It takes the place of ``flower-superexec`` and ``flwr-clientapp``, ignores the code that came, and calls `client_app.py`.

A message without an answer, because its run has ended or its SuperNode did not respond, is left alone: within a minute the
SuperNode answers in the app's place, and takes the next one.

Also here: Flower's SuperNode, less idle and more patient: `dpfed site supernode` takes the options of `flower-supernode`.

A SuperNode looks for messages every 3 seconds while it has none, and for its app's reply every half a second. With shorter
pauses an exchange takes about 3 seconds less, and a step with secure sums, which needs two of them, 6. It also gives up for
good where a network fails while it connects over TLS; this one tries again. A federation with `flower-supernode` itself works
as well, and is slower; see that it is started again.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from pathlib import Path

import httpx

from dpfed.errors import UserError
from dpfed.federation.flower.client_app import app
from dpfed.federation.flower.internals import (
    handle,
    outlast_cut_handshakes,
    run_supernode,
    shorten_fetching,
    shorten_idling,
    tasks_of,
)
from dpfed.federation.provisioning.network import State, of_connection

_MOST = 64  # messages at a time, nearly all of which wait for the rest of themselves
_PAUSE = 0.05  # seconds between looks for a message
_ABSENCE = 0.5  # seconds between looks for a SuperNode that is not there
_REFUSED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)

_log = logging.getLogger(__name__)


def serve(address: str, secret: bytes) -> None:
    """Handles the messages of a SuperNode; the SuperNode may come later, and go.

    Args:
        address: of the SuperNode's Runtime API, on this machine.
        secret: shared with the SuperNode, so that no other user of the machine can take its messages.

    Raises:
        UserError: if the SuperNode does not know the secret.
    """
    room = threading.BoundedSemaphore(_MOST)
    with tasks_of(address, secret) as next_task:
        while True:
            try:
                token = next_task()
            except httpx.HTTPError as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _REFUSED:
                    raise UserError(f"the SuperNode {address} refuses: give both the same secret. [flower-secret]") from error
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
        handle(address, token, app)
    except Exception as error:  # its run has ended, or the SuperNode is gone or knows nothing of the task any more
        _log.warning(
            "a message has no answer: %s; the SuperNode reports it within a minute, and continues", type(error).__name__
        )
    finally:
        room.release()


def stay(address: str, secret: Path) -> None:
    """Serves a SuperNode.

    Args:
        address: of the SuperNode's Runtime API, as HOST:PORT.
        secret: the file that the SuperNode has, too.

    Raises:
        UserError: if the SuperNode does not know the secret.
    """
    shorten_fetching()
    serve(address, secret.read_bytes())


_UNKNOWN = (
    "the coordinator has not registered this SuperNode's key yet, or not again since its SuperLink was restarted: send it "
    "reply.json, and start the SuperNode again. A service manager does that by itself"
)


def main() -> None:
    """The command line of `flower-supernode`."""
    refused = threading.Event()
    shorten_fetching()
    shorten_idling()
    outlast_cut_handshakes(refused.set)
    try:
        run_supernode()
    except SystemExit as end:
        if end.code == 1 or refused.is_set():
            print(f"error: the SuperNode was not let in: {_reason(sys.argv[1:])}.", file=sys.stderr)
            sys.exit(1)
        raise


def _reason(words: list[str]) -> str:
    """Why the SuperLink refuses this SuperNode: what is wrong on the way to it, the clock included, or an unknown key."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--superlink", "--root-certificates"):
        parser.add_argument(option)
    given, _ = parser.parse_known_args(words)
    if given.superlink and given.root_certificates:
        for found in of_connection(given.superlink, Path(given.root_certificates), os.environ):
            if found.state is State.BAD:
                return f"{found.about}: {found.said}; {found.advice}"
    return _UNKNOWN
