"""A step outlasts a worker that is being restarted."""

import threading
import time

import pytest

pytest.importorskip("flwr")

from flwr.app import Message  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from dpfed.errors import UserError  # noqa: E402
from dpfed.federation.flower import client_app as module  # noqa: E402
from dpfed.federation.flower import resident  # noqa: E402
from dpfed.federation.flower.channel import MESSAGE_TYPE, content_of, packet_in  # noqa: E402
from dpfed.protocol.identity import Identity  # noqa: E402
from dpfed.protocol.messages import (  # noqa: E402
    Failure,
    failure_of,
    sign,  # noqa: E402
)
from tests.federation.flower.sites import Sites  # noqa: E402
from tests.patience import Patience  # noqa: E402

KEY = Identity(bytes(32))


class Node:
    """What a SuperNode gives its app."""

    def __init__(self, socket):
        self.node_config = {"socket": str(socket)}


@pytest.fixture(autouse=True)
def task():
    """Messages are made in a task of a run."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@pytest.fixture
def message(monkeypatch):
    """Makes messages of a kind; replies are what the app says."""
    monkeypatch.setattr(module, "Message", lambda content, reply_to: content)

    def make(kind, seconds=30.0):
        return Message(content_of(sign(KEY, "t", kind)), 1, MESSAGE_TYPE, ttl=seconds)

    return make


@pytest.mark.parametrize("address", ["", "127.0.0.1", ":9200", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:x", "localhost:65536"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(UserError, match="expected HOST:PORT.*flower-address"):
        resident.serve(address, bytes(32))


def test_a_step_waits_for_a_lost_worker_and_a_greeting_does_not(message, monkeypatch):
    with Sites(["north"]) as sites:
        node = Node(sites.sockets["north"])
        sites.stop("north")
        started, patience = time.monotonic(), Patience(1)
        assert failure_of(packet_in(module.forward(message("hello"), node))) == Failure.UNREACHABLE
        assert not patience.ended
        threading.Timer(0.7, sites.start, ["north"]).start()
        assert not failure_of(packet_in(module.forward(message("step"), node)))
        assert time.monotonic() - started > 0.5
