"""A wrong token is said within seconds; whatever else a server answers is left to Ray."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

grpc = pytest.importorskip("grpc")
pytest.importorskip("ray")

from dpfed.cluster.reach import require_admission  # noqa: E402
from dpfed.errors import UserError  # noqa: E402


class Head(grpc.GenericRpcHandler):
    """Answers every question alike."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def service(self, details):
        self.asked.append(details.method)

        def method(_, context):
            if self.answer is not None:
                context.abort(self.answer, "Authentication token is missing or incorrect")
            return b""

        return grpc.unary_unary_rpc_method_handler(method)


@pytest.fixture
def head(monkeypatch):
    servers = []

    def start(answer):
        handler, server = Head(answer), grpc.server(ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers((handler,))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        server.start()
        servers.append(server)
        return handler

    yield start
    for server in servers:
        server.stop(None)


def test_a_cluster_that_wants_another_token_is_a_sentence_at_once(head):
    handler, started = head(grpc.StatusCode.UNAUTHENTICATED), time.monotonic()
    with pytest.raises(UserError, match="does not take this machine's token: set RAY_AUTH_MODE=token"):
        require_admission()
    assert time.monotonic() - started < 5 and handler.asked == ["/ray.rpc.NodeInfoGcsService/GetClusterId"]


@pytest.mark.parametrize("answer", [None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED])
def test_any_other_answer_is_left_to_ray(head, answer):
    handler = head(answer)
    require_admission()
    assert handler.asked


@pytest.mark.parametrize("address", ["local", "ray://127.0.0.1:10001", "127.0.0.1:9"])
def test_where_no_head_answers_nothing_is_said(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    require_admission()
