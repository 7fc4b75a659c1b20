"""Flower has what dpfed takes from it beyond its documented API, and its waits become as short as we ask for."""

import importlib
import importlib.metadata
import inspect
import re
import signal
import socket
import sys
import threading
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.supercore.inflatable import inflatable_utils  # noqa: E402
from flwr.supercore.retry import make_simple_http_retry_invoker  # noqa: E402
from flwr.supernode import fleet_http_connection, start_client_internal  # noqa: E402

import dpfed.federation  # noqa: E402
from dpfed.federation.demo.loopback import free_ports  # noqa: E402
from dpfed.federation.flower import internals  # noqa: E402
from dpfed.federation.flower.internals import limit_replies, outlast_cut_handshakes, replies_of_at_most, shorten_idling  # noqa: E402
from tests.patience import run_to_end, strain  # noqa: E402

ROOT = Path(dpfed.federation.__file__).parents[2]
UPGRADE = "Flower has changed: dpfed/federation/flower/internals.py says what to do on an upgrade."
CALLS = {  # as dpfed makes them
    "pull_task_input": ["client"],
    "push_message": ["client", "message", "context"],
    "push_task_output": ["client", None, "completed", ""],
    "RuntimeTokenHttpInterceptor": ["token"],
    "RuntimeVersionHttpInterceptor": {"component_name": "flwr-clientapp"},
    "SuperExecAuthHttpInterceptor": {"master_secret": b"", "protected_methods": []},
    "RuntimeHttpClient.from_server_address": ["address", True, None, []],
    "RuntimeHttpClient.AcquireTask": ["self", "request"],
    "RuntimeHttpClient.SendTaskHeartbeat": ["self", "request"],
    "RetryInvoker": [lambda: iter(()), Exception, 3, None],
    "constant": [1.0],
    "HeartbeatSender": [lambda: True],
    "HeartbeatSender.start": ["self"],
    "HeartbeatSender.stop": ["self"],
}


@pytest.fixture(autouse=True)
def as_it_was():
    functions = (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree)
    before, clock = [dict(function.__kwdefaults__) for function in functions], start_client_internal.time
    yield
    start_client_internal.time = clock
    for function, defaults in zip(functions, before, strict=True):
        function.__kwdefaults__.update(defaults)


def test_the_version_is_the_one_that_the_file_is_written_for():
    assert importlib.metadata.version("flwr").startswith(f"{internals.VERSION}."), UPGRADE
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    major, minor = map(int, internals.VERSION.split("."))
    assert f"flwr>={major}.{minor},<{major}.{minor + 1}" in extras["flower"]


@pytest.mark.parametrize("name", CALLS)
def test_what_is_called_takes_what_it_is_given(name):
    called = internals
    for part in name.split("."):
        called = getattr(called, part, None)
    assert called is not None, UPGRADE
    given = CALLS[name]
    try:
        inspect.signature(called).bind(*given if isinstance(given, list) else (), **given if isinstance(given, dict) else {})
    except TypeError as error:
        pytest.fail(f"{name}: {error}. {UPGRADE}")


def test_all_waits_of_a_supernode_use_the_exchanged_clock():
    uses = re.findall(r"\btime\.(\w+)\(", inspect.getsource(start_client_internal))
    assert set(uses) == {"sleep"}, UPGRADE  # the exchanged clock has nothing else


def test_nothing_else_takes_undocumented_parts_of_flower():
    files = list((ROOT / "dpfed").rglob("*.py"))
    documented = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
    imports = {
        (file.relative_to(ROOT).as_posix(), module)
        for file in files
        for module in re.findall(r"^\s*(?:from|import) (flwr[\w.]*)", file.read_text(encoding="utf-8"), re.MULTILINE)
        if module not in documented
    }
    assert {file for file, _ in imports} == {"dpfed/federation/flower/internals.py"}, imports


def test_an_idle_supernode_looks_for_messages_often(monkeypatch):
    class Ended(Exception):
        pass

    looks = []

    def look(**_):
        looks.append(time.monotonic())
        if len(looks) == 4:
            raise Ended

    monkeypatch.setattr(start_client_internal, "_pull_and_store_message", look)
    monkeypatch.setattr(start_client_internal, "_init_connection", lambda **_: Connection())
    monkeypatch.setattr(start_client_internal, "register_signal_handlers", lambda **_: None)
    shorten_idling()
    factory = SimpleNamespace(
        state=lambda: SimpleNamespace(set_node_id=lambda node: None), objectstore_factory=SimpleNamespace(store=lambda: None)
    )
    with pytest.raises(Ended):
        start_client_internal.start_client_internal(
            state_factory=factory, server_address="127.0.0.1:1", node_config={}, isolation="process"
        )
    assert looks[-1] - looks[0] < 3 * strain()  # by itself: 9 s


class Connection:
    """A connection that nothing goes through."""

    def __enter__(self):
        return (1, *[None] * 7)

    def __exit__(self, *_):
        return None


def handshake(what: str) -> Exception:
    """What httpx says of a server that ends the connection in the handshake, falls silent in it, or speaks no TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)
                if what == "silent":
                    time.sleep(0.6)
                elif what == "no TLS":
                    connection.sendall(b"HTTP/1.0 400 no\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with pytest.raises(httpx.TransportError) as error:
                httpx.get(f"https://127.0.0.1:{listener.getsockname()[1]}", timeout=0.3)
            return error.value
        finally:
            thread.join()


@pytest.mark.parametrize(("what", "tries_again"), [("cut", True), ("silent", True), ("no TLS", False), ("certificate", False)])
def test_a_supernode_outlasts_a_network_failing_in_a_handshake(monkeypatch, what, tries_again):
    monkeypatch.setattr(fleet_http_connection, "make_simple_http_retry_invoker", make_simple_http_retry_invoker)
    outlast_cut_handshakes()
    error = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate")
    error = error if what == "certificate" else handshake(what)
    assert fleet_http_connection.make_simple_http_retry_invoker().should_giveup(error) is not tries_again


def test_a_refusal_is_told_before_flower_ends_the_supernode(monkeypatch):
    told = []
    monkeypatch.setattr(fleet_http_connection, "make_simple_http_retry_invoker", make_simple_http_retry_invoker)
    monkeypatch.setattr("flwr.supercore.retry.http_retry.os", SimpleNamespace(getpid=int, kill=lambda *_: told.append("ended")))
    monkeypatch.setattr("flwr.supercore.retry.http_retry.time", SimpleNamespace(sleep=lambda _: None))
    outlast_cut_handshakes(lambda: told.append("refused"))
    invoker = fleet_http_connection.make_simple_http_retry_invoker()
    for code in (503, 401):
        request, response = httpx.Request("POST", "https://a"), httpx.Response(code)
        invoker.should_giveup(httpx.HTTPStatusError("", request=request, response=response))
    assert told == ["refused", "ended"]


# ---- how long a reply may be


@pytest.fixture
def pull(monkeypatch):
    """What Flower's grid fetches the objects of a reply with, under our limit."""
    from flwr.superlink.grid import http_grid

    monkeypatch.setattr(http_grid, "pull_objects", inflatable_utils.pull_objects)
    limit_replies()
    limit_replies()  # a second channel in one process
    return lambda names, fetch: http_grid.pull_objects(object_ids=names, pull_object_fn=fetch)


def test_a_reply_is_given_up_when_it_is_longer_than_it_may_be(pull):
    fetched = []

    def fetch(name):
        fetched.append(name)
        return bytes(1000)

    names = [str(number) for number in range(10)]
    assert len(pull(names, fetch)) == 10  # nobody limits it here
    with replies_of_at_most(10_000):
        assert len(pull(names, fetch)) == 10
    fetched.clear()
    with replies_of_at_most(3_500), pytest.raises(inflatable_utils.ObjectPullError, match="more than 3,500 bytes"):
        pull(names, fetch)
    assert len(fetched) < 10
    assert len(pull(names, fetch)) == 10  # and no longer


def test_a_reply_of_very_many_objects_is_not_fetched_at_all(pull):
    with replies_of_at_most(1 << 20), pytest.raises(inflatable_utils.ObjectPullError, match="are announced"):
        pull([str(number) for number in range(1000)], lambda name: pytest.fail("it was fetched"))


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_flower_answers_any_ends_a_supernode(number, code):
    """Its HTTP server is a thread that Python would wait for."""
    (port,) = free_ports(1)
    program = f"""
import signal, sys
import flwr.supernode.cli
from dpfed.__main__ import main
sys.modules["flwr.supernode.cli.flower_supernode"].start_client_internal = lambda **_: signal.raise_signal({int(number)})
sys.argv = ["dpfed", *"site supernode --insecure --superlink 127.0.0.1:9 --isolation process --port {port}".split()]
main()
"""
    done = run_to_end([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == code and "stopped." in done.stderr.splitlines()
