"""All uses of Flower beyond its documented API, written for Flower 1.41.

Flower documents `flwr.app`, `flwr.clientapp`, `flwr.serverapp`, and its commands. Beyond these, dpfed uses:

- the Runtime API of a SuperNode (`tasks_of`, `handle`): a single long-lived process handles all messages (`resident.py`).
  Its counterpart in Flower is ``flwr/supernode/runtime/run_clientapp.py``.
- the waits that `shorten_fetching` changes, which are a large part of a round that transfers 45 MB: the defaults of two
  functions in ``flwr/supercore/inflatable/inflatable_utils.py``.
- the waits that `shorten_idling` changes, which are 3 seconds of every exchange: each ``time.sleep`` in
  ``flwr/supernode/start_client_internal.py``.
- the errors at which a SuperNode gives up, which `outlast_cut_handshakes` changes: ``_should_giveup`` in
  ``flwr/supercore/retry/http_retry.py``.
- `pull_objects` of ``flwr/superlink/grid/http_grid.py``, which `limit_replies` limits: in Flower, a reply may consist of
  objects of any number and size.
- the thread of a SuperNode's HTTP server, which `run_supernode` ends where Flower does not yet do so:
  ``flwr/supernode/cli/flower_supernode.py``.
- `RunNotRunningException`, which ``Grid`` raises when the operator has stopped the run.

On an upgrade: change ``FLOWER_VERSION`` in ``app_folder.py`` and the range of ``flwr`` in ``pyproject.toml``, and run
``tests/federation/flower``. These tests show what no longer fits. Then read the files above: their behaviour may have changed,
too.
"""

# ruff: noqa: E402 the version is checked first
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import httpx
from flwr.app import Context, Message

from dpfed.errors import UserError
from dpfed.federation.flower.app_folder import FLOWER_VERSION

VERSION = FLOWER_VERSION

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_FIRST, _LONGEST = 0.05, 0.4  # seconds between tries to fetch an object that is not there yet: shortest, longest
_OBJECTS, _CHUNK = 16, 1 << 20  # most objects of a reply beside the chunks of its vector; least bytes of such a chunk
_TRIES, _BETWEEN = 6, 1.0  # tries of a request to a SuperNode on this machine that breaks off; seconds between them
_LONGEST_IDLE = 0.2  # seconds; an idle SuperNode then sends five signed requests a second, of a few hundred bytes each


if not version("flwr").startswith(f"{VERSION}."):
    raise UserError(
        f"Flower {version('flwr')} is installed; dpfed needs {VERSION}: pip install 'flwr~={VERSION}.0'. [flower-version]"
    )

from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.retry.retry_invoker import RetryInvoker, constant
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import http_grid
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

__all__ = [
    "VERSION",
    "RunNotRunningException",
    "handle",
    "limit_replies",
    "outlast_cut_handshakes",
    "replies_of_at_most",
    "run_supernode",
    "shorten_fetching",
    "shorten_idling",
    "tasks_of",
]


def shorten_fetching() -> None:
    """Makes this process retry sooner to fetch objects that are not there yet; it still gives up after two hours.

    A message is announced before its objects are uploaded. A receiver that fetches an object too early waits 1 second, then 2,
    4 and 8, each time plus or minus a fifth, and every long message is fetched too early. Flower has no setting for these
    waits.
    """
    for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        (function.__kwdefaults__ or {}).update(initial_backoff=_FIRST, backoff_cap=_LONGEST, max_tries_per_object=None)


_most: ContextVar[int | None] = ContextVar("most bytes of a reply", default=None)


@contextmanager
def replies_of_at_most(size: int) -> Iterator[None]:
    """Limits the size of the replies that this thread fetches within the block: it gives up fetching a longer reply.

    Without a limit, a long reply could fill the memory. `limit_replies` must have been called before.

    Args:
        size: Largest size of a reply, in bytes.
    """
    token = _most.set(size)
    try:
        yield
    finally:
        _most.reset(token)


def limit_replies() -> None:
    """Makes Flower in this process obey `replies_of_at_most`: a longer reply raises Flower's error for a lost reply."""
    plain, error = http_grid.pull_objects, inflatable_utils.ObjectPullError
    if getattr(plain, "limited", False):
        return

    def limited(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any) -> dict[str, bytes]:
        most = _most.get()
        if most is None:
            return plain(object_ids, pull_object_fn, **options)
        if len(object_ids) > _OBJECTS + most // _CHUNK:
            raise error(object_ids[0], f"more than {most:,} bytes are announced")
        lock, left = threading.Lock(), most

        def counted(object_id: str) -> bytes:
            nonlocal left
            content = pull_object_fn(object_id)
            with lock:
                left -= len(content)
                if left < 0:
                    raise error(object_id, f"the reply has more than {most:,} bytes")
            return content

        return plain(object_ids, counted, **options)

    limited.limited = True  # type: ignore[attr-defined]
    http_grid.pull_objects = limited


def shorten_idling() -> None:
    """Makes the SuperNode in this process look more often for messages, and for its app's replies."""
    setattr(start_client_internal, "time", SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, _LONGEST_IDLE))))  # noqa: B010


def outlast_cut_handshakes(on_refusal: Callable[[], None] = lambda: None) -> None:
    """Makes the SuperNode in this process retry if the network fails while a TLS connection is made.

    Flower takes such a failure for a wrong certificate: its SuperNode gives up permanently, and its process stays but does
    nothing. With a certificate that is really wrong, the SuperNode still gives up.

    Args:
        on_refusal: Function that is called when the SuperLink refuses this SuperNode (401): Flower then ends the SuperNode as
            if by Ctrl-C, without a message. Default: does nothing.
    """
    make = fleet_http_connection.make_simple_http_retry_invoker

    def made() -> Any:
        invoker = make()
        gives_up = invoker.should_giveup
        assert gives_up is not None  # Flower always sets it

        def judged(error: Exception) -> bool:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.UNAUTHORIZED:
                on_refusal()
            return not _cut(error) and gives_up(error)

        invoker.should_giveup = judged
        return invoker

    setattr(fleet_http_connection, "make_simple_http_retry_invoker", made)  # noqa: B010


def _cut(error: Exception) -> bool:
    """Returns whether an error means that a connection ended, or fell silent, while it was being made."""
    text = str(error).lower()
    return isinstance(error, httpx.TransportError) and ("eof occurred" in text or "timed out" in text)


def run_supernode() -> None:
    """Runs the command ``flower-supernode`` in this process.

    Flower handles signals only after its HTTP server has started. If Ctrl-C comes earlier, this function ends the thread of
    that server.
    """
    import uvicorn
    from flwr.supernode.cli import flower_supernode

    try:
        flower_supernode()
    except KeyboardInterrupt:
        for thread in threading.enumerate():
            if isinstance(server := getattr(getattr(thread, "_target", None), "__self__", None), uvicorn.Server):
                server.should_exit = True
        raise


@contextmanager
def tasks_of(address: str, secret: bytes) -> Iterator[Callable[[], str]]:
    """Connects to a SuperNode, from which this process takes tasks.

    Args:
        address: Address of the SuperNode's Runtime API, on this machine.
        secret: Secret shared with the SuperNode.

    Yields:
        A function that returns the token of the oldest unhandled message, or an empty string if there is no message. The
        function raises `httpx.HTTPError` if the SuperNode does not answer, or refuses the secret.
    """
    interceptor = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[_ACQUIRE])
    with _client(address, interceptor) as client:
        yield lambda: client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])).token


def handle(address: str, token: str, app: Callable[[Message, Context], Message]) -> None:
    """Fetches a message and sends an app's answer. Meanwhile, tells the SuperNode that the task is running.

    A request that breaks off is made again. A process that cannot answer drops the task: a SuperNode that hears nothing of a
    task for a minute answers in the app's place. The SuperNode must not be told that the task has failed: it would then wait
    for an answer forever, and take no other message.

    Args:
        address: Address of the SuperNode's Runtime API.
        token: Token of the message, see `tasks_of`.
        app: App that answers the message.
    """
    again = RetryInvoker(
        lambda: constant(_BETWEEN), httpx.TransportError, max_tries=_TRIES, max_time=None, wait_function=time.sleep
    )
    with _client(address, RuntimeTokenHttpInterceptor(token), again) as client:

        def beat() -> bool:
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except httpx.HTTPError:
                return False
            return True

        heartbeat = HeartbeatSender(beat)
        heartbeat.start()
        try:
            message, context, _, _ = pull_task_input(client)
            push_message(client, app(message, context), context)
            push_task_output(client, None, SubStatus.COMPLETED, "")
        finally:
            heartbeat.stop()


def _client(
    address: str, interceptor: RuntimeTokenHttpInterceptor | SuperExecAuthHttpInterceptor, again: RetryInvoker | None = None
) -> RuntimeHttpClient:
    called = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    # `again` takes the place of Flower's own retries, which end the process when a task is no longer known.
    return RuntimeHttpClient.from_server_address(address, True, None, [called, interceptor], retry_invoker=again)
