"""The channel and the client app against each other, without a network."""

import time

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402

from dpfed.federation.flower.channel import (  # noqa: E402
    FlowerChannel,  # noqa: E402
    packet_in,
)
from dpfed.federation.flower.client_app import app  # noqa: E402
from dpfed.protocol.messages import Packet, PacketError  # noqa: E402
from tests.federation.flower.in_process_grid import InProcessGrid  # noqa: E402
from tests.federation.flower.sites import Sites  # noqa: E402
from tests.patience import Patience  # noqa: E402


@pytest.fixture
def sites():
    with Sites("abc") as sites:
        yield sites


@pytest.fixture
def grid(sites):
    return InProcessGrid(app, {number: {"socket": str(path)} for number, path in enumerate(sites.sockets.values(), 11)})


def test_packets_are_carried_both_ways(grid, sites):
    sites.handle["a"] = lambda packet: Packet(b"reply to " + packet.header, b"hers", bytes(packet.vector) * 2)
    channel = FlowerChannel(grid)
    assert channel.sites() == ["11", "12", "13"]
    packets = {address: Packet(f"for {address}".encode(), b"mine", b"abc") for address in channel.sites()}
    answers = dict(channel.exchange(packets, 10))
    assert answers == {
        "11": Packet(b"reply to for 11", b"hers", b"abcabc"),
        "12": Packet(b"for 12", b"mine", b"abc"),
        "13": Packet(b"for 13", b"mine", b"abc"),
    }


def test_why_no_answer_came_is_said_once_until_one_comes(grid, sites, caplog):
    channel = FlowerChannel(grid)

    def ask():
        return dict(channel.exchange({"11": Packet(b"q", b"")}, 10))

    sites.handle["a"] = lambda packet: 1 / 0
    for _ in range(3):
        assert ask() == {"11": None}
    said = [record.getMessage() for record in caplog.records if record.name == "dpfed.federation.flower.channel"]
    assert len(said) == 1 and said[0].startswith("SuperNode 11: no answer (")
    sites.handle["a"] = lambda packet: packet
    assert ask() == {"11": Packet(b"q", b"")}
    sites.handle["a"] = lambda packet: 1 / 0
    ask()
    assert sum(record.name == "dpfed.federation.flower.channel" for record in caplog.records) == 2


def test_no_answer_is_said_at_once_and_to_nobody_else(grid, sites):
    sites.stop("a")
    sites.handle["b"] = lambda packet: 1 / 0
    patience = Patience(5)
    answers = dict(FlowerChannel(grid).exchange({a: Packet(b"q", b"") for a in ("11", "12", "13", "99")}, 30))
    assert answers == {"11": None, "12": None, "13": Packet(b"q", b""), "99": None}
    assert not patience.ended


def test_what_is_late_is_never_seen(grid, sites):
    sites.handle["a"] = lambda packet: (time.sleep(1.5), packet)[1]
    channel = FlowerChannel(grid)
    start = time.monotonic()
    assert dict(channel.exchange({"11": Packet(b"first", b""), "12": Packet(b"first", b"")}, 1)) == {
        "12": Packet(b"first", b"")
    }
    assert 0.9 < time.monotonic() - start < 1.4
    time.sleep(1)
    sites.handle.pop("a")
    assert dict(channel.exchange({"11": Packet(b"second", b"")}, 10)) == {"11": Packet(b"second", b"")}


def test_of_two_replies_to_one_message_the_first_counts(grid, sites, monkeypatch):
    pull = grid.pull_messages

    def twice(ids):
        replies = pull(ids)
        content = RecordDict({"packet": ConfigRecord({"header": b"another", "signature": b""})})
        return [*replies, *(Message(content, reply_to=reply) for reply in replies)]

    monkeypatch.setattr(grid, "pull_messages", twice)
    packets = {address: Packet(address.encode(), b"") for address in ("11", "12")}
    assert sorted(FlowerChannel(grid).exchange(packets, 10)) == sorted(packets.items())


def test_a_failure_at_a_site_leaves_no_trace_in_what_travels(grid, sites):
    def fail(packet):
        raise ValueError("patient 4711")

    sites.handle["a"] = fail
    sites.stop("b")
    grid.nodes[14] = {}  # a SuperNode without its setting
    list(FlowerChannel(grid).exchange({a: Packet(b"q", b"") for a in ("11", "12", "14")}, 10))
    travelled = b"\n".join(grid.sent)
    assert travelled.count(b'"kind": "failure"') == 3
    for secret in ("4711", "ValueError", "Traceback", "KeyError", *map(str, sites.sockets.values())):
        assert secret.encode() not in travelled


def strange(content):
    """A client app that replies with a content of its own."""
    hostile = ClientApp()

    @hostile.query("packet")
    def reply(message, context):
        return Message(content, reply_to=message)

    return hostile


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"packet": ConfigRecord({"header": "text", "signature": b""})}),
        RecordDict({"packet": ConfigRecord({"header": b"h"})}),
        RecordDict({"packet": ConfigRecord({"header": b"h", "signature": b""}), "vector": ConfigRecord({"vector": b"v"})}),
    ],
)
def test_a_strange_reply_is_no_answer(content):
    channel = FlowerChannel(InProcessGrid(strange(content), {11: {}}))
    assert dict(channel.exchange({"11": Packet(b"q", b"")}, 10)) == {"11": None}
    with pytest.raises(PacketError):
        packet_in(content)
