"""Runs a SuperNode's ClientApp in one resident process, from the code that is installed at the site.

By default, a SuperNode starts a process for every message, and that process runs the code that came with the run. A message
then takes seconds longer, and whoever may start a run may run any code at every site. With ``--isolation process``, a SuperNode
leaves messages to another program. This module is that program:

    dpfed site app --runtime-api-address 127.0.0.1:9200 --superexec-auth-secret-file FILE

This program takes the place of ``flower-superexec`` and ``flwr-clientapp``, ignores the code that came with the run, and calls
`client_app.py`.

If a message gets no answer, because its run has ended or its SuperNode did not respond, this program drops it: within a minute
the SuperNode answers in the app's place, and takes the next message.

The module also runs Flower's SuperNode with shorter pauses and more retries (`main`). The command is `dpfed site supernode`,
which takes the options of `flower-supernode`.

A SuperNode looks for messages every 3 seconds while it has none, and for its app's reply every half second. With shorter
pauses, an exchange takes about 3 seconds less. A step with secure sums from which sites may drop out needs two exchanges (three
if a site does drop out), so it takes about 6 seconds less.
Flower's SuperNode also gives up permanently if the network fails while it connects over TLS; this SuperNode retries. A
federation also works with `flower-supernode` itself, but more slowly; let a service manager restart `flower-supernode` when it
ends.
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

_MOST = 64  # messages at a time; nearly all of them wait for the rest of their content
_PAUSE = 0.05  # seconds between looks for a message
_ABSENCE = 0.5  # seconds between looks for a SuperNode that is not there
_REFUSED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)

_log = logging.getLogger(__name__)


def serve(address: str, secret: bytes) -> None:
    """Handles the messages of a SuperNode, without end. The SuperNode may start later, and restart.

    Args:
        address: Address of the SuperNode's Runtime API, on this machine, as HOST:PORT.
        secret: Secret shared with the SuperNode, so that no other user of the machine can take its messages.

    Raises:
        UserError: If the address is not HOST:PORT, or the SuperNode refuses the secret.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"the SuperNode's address is {address!r}: expected HOST:PORT, such as 127.0.0.1:9200. [flower-address]")
    room = threading.BoundedSemaphore(_MOST)
    with tasks_of(address, secret) as next_task:
        while True:
            try:
                token = next_task()
            except httpx.HTTPError as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _REFUSED:
                    raise UserError(
                        f"the SuperNode {address} refuses the secret: give both programs the same secret file. [flower-secret]"
                    ) from error
                time.sleep(_ABSENCE)
                continue
            if token:
                # Each message has a thread: a message whose server died while sending it would hold up all others for hours.
                room.acquire()
                threading.Thread(target=_handle, args=(address, token, room), daemon=True).start()
            else:
                time.sleep(_PAUSE)


def _handle(address: str, token: str, room: threading.Semaphore) -> None:
    try:
        handle(address, token, app)
    except Exception as error:  # the run has ended, the SuperNode is gone, or it no longer knows the task
        _log.warning(
            "a message has no answer: %s; the SuperNode reports it within a minute, and continues", type(error).__name__
        )
    finally:
        room.release()


def stay(address: str, secret: Path) -> None:
    """Handles the messages of a SuperNode with the secret in a file, see `serve`.

    Args:
        address: Address of the SuperNode's Runtime API, as HOST:PORT.
        secret: File of the secret that this process shares with the SuperNode.

    Raises:
        UserError: If the address is not HOST:PORT, or the SuperNode refuses the secret.
        OSError: If the file cannot be read.
    """
    shorten_fetching()
    serve(address, secret.read_bytes())


_UNKNOWN = (
    "the coordinator has not registered this SuperNode's key yet, or not again since the SuperLink was restarted: send "
    "reply.json to the coordinator, and start the SuperNode again. A service manager starts it again by itself"
)


def main() -> None:
    """Runs Flower's SuperNode with the options of this command line. If the SuperNode is refused, says why."""
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
    """Explains why the SuperLink refuses this SuperNode: a faulty connection, a wrong clock, or an unknown key."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--superlink", "--root-certificates"):
        parser.add_argument(option)
    given, _ = parser.parse_known_args(words)
    if given.superlink and given.root_certificates:
        for finding in of_connection(given.superlink, Path(given.root_certificates), os.environ):
            if finding.state is State.BAD:
                return f"{finding.about}: {finding.said}; {finding.advice}"
    return _UNKNOWN
