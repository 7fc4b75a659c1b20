"""A message without an answer does not end a site: its SuperNode must not wait for ever."""

import datetime
import http.server
import threading

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict  # noqa: E402
from flwr.common.constant import SubStatus  # noqa: E402
from flwr.supercore.constant import TaskType  # noqa: E402
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState  # noqa: E402

from dpfed.federation.flower import (
    internals,  # noqa: E402
    resident,  # noqa: E402
)


class State:
    """A SuperNode's, with one message in hand of an app."""

    def __init__(self):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.state = InMemoryNodeState(InMemoryObjectStore())
        self.state.set_node_id(1)
        message = Message(RecordDict(), 1, "train")
        message.metadata.__dict__["_message_id"] = message.object_id
        self.state.store_message(message)
        self.task = self.state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="x")
        self.state.claim_task(self.task)
        self.state.activate_task(self.task)
        assert len(self.state.get_messages_legacy(run_ids=[1], is_reply=False, limit=1)) == 1
        self.state.record_message_processing_start(message.object_id)

    def falls_silent(self):
        record = self.state.task_token_store[self.task]
        record.active_until = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)

    def replies(self):
        return self.state.get_messages_legacy(is_reply=True)


def test_a_supernode_answers_for_silent_apps_not_for_failed_ones():
    """Why `handle` says nothing where it has no answer; if the second half holds no longer, it may say so again."""
    silent, failed = State(), State()
    silent.falls_silent()
    (reply,) = silent.replies()
    assert reply.has_error()
    assert failed.state.finish_task(task_id=failed.task, sub_status=SubStatus.FAILED, details="")
    assert not failed.replies()


@pytest.fixture
def supernode():
    """A Runtime API that breaks off what it is asked, as often as `cuts` says."""

    class Handler(http.server.BaseHTTPRequestHandler):
        cuts, asked = 0, []

        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            Handler.asked.append(self.path.rpartition("/")[2])
            if Handler.cuts:
                Handler.cuts -= 1
                self.close_connection = True
                return
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    Handler.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Handler.address = f"127.0.0.1:{server.server_address[1]}"
    yield Handler
    server.shutdown()
    server.server_close()


def test_where_there_is_no_answer_nothing_is_said_but_in_the_log(supernode, monkeypatch, caplog):
    def broken(client):
        raise RuntimeError("secret of a record")

    monkeypatch.setattr(internals, "pull_task_input", broken)
    room = threading.BoundedSemaphore(1)
    room.acquire()
    resident._handle(supernode.address, "token", room)
    assert "push-task-output" not in supernode.asked
    assert "RuntimeError" in caplog.text and "secret" not in caplog.text
    assert room.acquire(blocking=False)
