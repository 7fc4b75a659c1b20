"""Runs a SuperNode's ClientApp in one process that stays, and from the code that is installed at the site.

Left to itself, a SuperNode starts a process for every message and runs in it the code that came with the run: a message takes
seconds longer, and whoever may start a run may run anything at every site. With ``--isolation process`` a SuperNode leaves that
to another program, which is this one:

    dpfed site app --runtime-api-address 127.0.0.1:9200 --superexec-auth-secret-file FILE

It takes the place of ``flower-superexec`` and ``flwr-clientapp``, ignores the code that came, and calls `client_app.py`.

A message without an answer, because its run has ended or its SuperNode did not respond, is left alone: within a minute the
SuperNode answers in the app's place, and takes the next one.

The signal USR1 retires it, when another SuperNode at the same site takes over: the coordinator asks the one that it greeted
last, and greets those that it does not count on. So it answers everything until it is greeted, does not answer that, and ends.
No step is lost.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from pathlib import Path

import httpx
from flwr.app import Context, Message

from dpfed.errors import UserError
from dpfed.federation.flower.client_app import app, is_greeting, unreachable
from dpfed.federation.flower.internals import SuperNode, Task, shorten_fetching

_MOST = 64  # messages at a time, nearly all of which wait for the rest of themselves
_PAUSE = 0.05  # seconds between looks for a message
_ABSENCE = 0.5  # seconds between looks for a SuperNode that is not there
_LAST = 30.0  # seconds for an answer that is on its way when the app ends
_REFUSED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)

_log = logging.getLogger(__name__)


class Retirement:
    """Whether this app retires, and whether the coordinator counts on another SuperNode by now."""

    def __init__(self) -> None:
        self.wanted, self.over = threading.Event(), threading.Event()

    def answer(self, message: Message, context: Context) -> Message:
        """What `dpfed.federation.flower.client_app` answers; to a greeting, when retiring, that nobody is here."""
        if self.wanted.is_set() and is_greeting(message):
            self.over.set()
            return unreachable(message)
        return app(message, context)


def serve(address: str, secret: bytes, retirement: Retirement | None = None) -> None:
    """Handles the messages of a SuperNode until retired; the SuperNode may come later, and go.

    Args:
        address: of the SuperNode's Runtime API, on this machine.
        secret: shared with the SuperNode, so that no other user of the machine can take its messages.
        retirement: ends it; default: nothing does.

    Raises:
        UserError: if the SuperNode does not know the secret.
    """
    room, retirement = threading.BoundedSemaphore(_MOST), retirement or Retirement()
    with SuperNode(address, secret) as supernode:
        while not retirement.over.is_set():
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
                threading.Thread(target=_handle, args=(address, token, room, retirement), daemon=True).start()
            else:
                time.sleep(_PAUSE)
        for _ in range(_MOST):  # what is in hand is answered
            room.acquire(timeout=_LAST)


def _handle(address: str, token: str, room: threading.Semaphore, retirement: Retirement) -> None:
    try:
        with Task(address, token) as task:
            task.handle(retirement.answer)
    except Exception as error:  # its run has ended, or the SuperNode is gone or knows nothing of the task any more
        _log.warning(
            "a message has no answer: %s; the SuperNode reports it within a minute, and continues", type(error).__name__
        )
    finally:
        room.release()


def _retire(retirement: Retirement) -> None:
    print("retiring: this app ends when the coordinator counts on another SuperNode of this site", flush=True)
    retirement.wanted.set()


def stay(address: str, secret: Path) -> None:
    """Serves until retired by the signal USR1.

    Args:
        address: of the SuperNode's Runtime API, as HOST:PORT.
        secret: the file that the SuperNode has, too.

    Raises:
        UserError: if the SuperNode does not know the secret.
    """
    shorten_fetching()
    retirement = Retirement()
    signal.signal(signal.SIGUSR1, lambda *_: _retire(retirement))
    serve(address, secret.read_bytes(), retirement)
    print("retired: the coordinator asks another SuperNode of this site", flush=True)
