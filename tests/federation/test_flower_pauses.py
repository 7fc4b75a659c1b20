"""Flower's own waits, in Flower's own functions: they must be as short as we ask for, whatever version is installed."""

import itertools
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.supercore.inflatable import inflatable_utils  # noqa: E402
from flwr.supernode import start_client_internal  # noqa: E402

from clients import supernode  # noqa: E402
from dpfed.federation.flower.pauses import shorten_fetching  # noqa: E402


@pytest.fixture(autouse=True)
def as_it_was():
    functions = (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree)
    before, clock = [dict(function.__kwdefaults__) for function in functions], start_client_internal.time
    yield
    start_client_internal.time = clock
    for function, defaults in zip(functions, before, strict=True):
        function.__kwdefaults__.update(defaults)


def late(tries):
    """Fetches an object that is there after so many tries."""
    count = itertools.count()

    def fetch(name):
        if next(count) < tries:
            raise inflatable_utils.ObjectUnavailableError(name)
        return name.encode()

    return fetch


def test_what_is_not_there_yet_is_fetched_soon():
    shorten_fetching()
    start = time.monotonic()
    assert inflatable_utils.pull_objects(["object"], late(4)) == {"object": b"object"}
    assert time.monotonic() - start < 2  # by itself: at least 0.8 (1 + 2 + 4 + 8) s


def test_a_whole_message_is_fetched_with_the_same_patience(monkeypatch):
    shorten_fetching()
    asked = {}
    monkeypatch.setattr(inflatable_utils, "pull_objects", lambda *_, **options: asked.update(options) or {})
    with pytest.raises(KeyError):  # there is nothing to unpack
        tree = SimpleNamespace(object_id="message", children=[])
        inflatable_utils.pull_and_inflate_object_from_tree(tree, late(0), lambda name: None)
    assert asked["initial_backoff"] < 0.1
    assert asked["backoff_cap"] < 1
    assert asked["max_tries_per_object"] is None


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
    supernode.shorten_idling()
    factory = SimpleNamespace(
        state=lambda: SimpleNamespace(set_node_id=lambda node: None),
        objectstore_factory=SimpleNamespace(store=lambda: None),
    )
    with pytest.raises(Ended):
        start_client_internal.start_client_internal(
            state_factory=factory, server_address="127.0.0.1:1", node_config={}, isolation="process"
        )
    assert looks[-1] - looks[0] < 3  # by itself: 9 s


class Connection:
    """A connection that nothing goes through."""

    def __enter__(self):
        return (1, *[None] * 7)

    def __exit__(self, *_):
        return None
