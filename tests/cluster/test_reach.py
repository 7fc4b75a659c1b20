"""A Ray cluster that does not answer is a sentence within seconds, and machines that are missing are a note."""

import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest

grpc = pytest.importorskip("grpc")
pytest.importorskip("ray")

from dpfed.cluster.launch import _connected  # noqa: E402
from dpfed.cluster.reach import require_cluster, watched  # noqa: E402
from dpfed.errors import UserError  # noqa: E402
from dpfed.progress import Silent  # noqa: E402
from tests.patience import Patience, at_most  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_started_here(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize("source", ["RAY_ADDRESS", "ray start"])
def test_a_dead_address_is_refused_within_seconds(monkeypatch, tmp_path, source):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, and not listening: a connection is refused
        address = f"127.0.0.1:{free.getsockname()[1]}"
        if source == "RAY_ADDRESS":
            monkeypatch.setenv("RAY_ADDRESS", address)
        else:
            (tmp_path / "ray").mkdir()
            (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        patience = Patience(6)
        with pytest.raises(UserError) as refused:
            require_cluster(Silent(), wait=0.1)
    assert refused.value.code == "ray-unreachable" and address in str(refused.value) and not patience.ended


def test_a_head_that_is_starting_is_waited_for(monkeypatch):
    notes, progress = [], Silent()
    monkeypatch.setattr(progress, "note", notes.append, raising=False)
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head.getsockname()[1]}")
        threading.Timer(0.5, head.listen).start()
        with pytest.raises(TimeoutError):  # it took the connection, and the next question is left to gRPC
            monkeypatch.setattr("grpc.insecure_channel", lambda _: (_ for _ in ()).throw(TimeoutError))
            require_cluster(progress, wait=20)
    assert len(notes) == 1 and "waiting up to 20 s" in notes[0]


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:", "127.0.0.1:port"])
def test_what_is_no_address_is_refused_at_once(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError) as refused:
        require_cluster(Silent())
    assert refused.value.code == "ray-address"


@pytest.mark.parametrize("address", ["", "auto", "local"])
def test_nothing_is_asked_where_no_cluster_is_named(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    require_cluster(Silent())


@pytest.mark.parametrize("answer", [None, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED])
def test_only_the_refusal_of_a_token_is_not_left_to_ray(monkeypatch, answer):
    asked = []

    class Head(grpc.GenericRpcHandler):
        def service(self, details):
            asked.append(details.method)
            return grpc.unary_unary_rpc_method_handler(lambda _, context: context.abort(answer, "no") if answer else b"")

    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Head(),))
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    try:
        require_cluster(Silent())
        assert answer != grpc.StatusCode.UNAUTHENTICATED
    except UserError as refused:
        assert answer == grpc.StatusCode.UNAUTHENTICATED and refused.code == "ray-token"
    finally:
        server.stop(None)
    assert asked == ["/ray.rpc.NodeInfoGcsService/GetClusterId"]


def test_rays_failed_connection_is_one_sentence(monkeypatch):
    def init(address, **_):
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n    Python: 3.11.4\n")

    fake = ModuleType("ray")
    fake.init, fake.is_initialized, fake.shutdown = init, lambda: False, lambda: None
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(UserError) as refused, _connected(Silent()):
        pass
    assert refused.value.code == "ray-connection" and "Ray: 2.59.0 Python: 3.11.4" in str(refused.value)


def test_machines_that_go_and_come_back_are_each_told_once():
    rooms = iter([2, 1, None, 0, 2, 2])
    looked = threading.Event()
    notes = []
    progress = Silent()
    progress.note = notes.append

    def room():
        if (now := next(rooms, "over")) == "over":
            looked.set()
            return 2
        if now is None:
            raise ConnectionError
        return now

    with watched(2, room, progress, every=0.01):
        assert looked.wait(at_most(10))
    assert notes == [
        "machines are missing: the cluster has room for 1 of 2 workers, and the run waits for the others",
        "the machines that were missing are back",
    ]
