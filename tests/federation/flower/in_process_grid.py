"""Flower's Grid and SuperNodes within one process: real messages go through the real client app, and through no network."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class InProcessGrid(Grid):
    """Nodes that each handle a message in a thread, as a SuperNode does in a process.

    Args:
        app: the client app.
        nodes: each node's configuration, by its id.

    Attributes:
        nodes: the same; a node that is taken out is no longer connected, and messages to it are refused.
        sent: every message that went either way, serialised, as a curious server would see it.
    """

    def __init__(self, app: ClientApp, nodes: Mapping[int, Mapping[str, Any]]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._app, self.nodes = app, dict(nodes)
        self._replies: dict[str, Message] = {}
        self.sent: list[bytes] = []

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError("use Message")

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self.nodes:
                ids.append("")
                continue
            ids.append(uuid.uuid4().hex)
            arrived = self._through_the_wire(message)
            arrived.metadata.__dict__["_message_id"] = ids[-1]
            threading.Thread(target=self._handle, args=(node, arrived), daemon=True).start()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(one) for one in list(message_ids) if one in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        ids = [one for one in self.push_messages(messages) if one]
        deadline = time.monotonic() + (timeout or 3600)
        replies: list[Message] = []
        while len(replies) < len(ids) and time.monotonic() < deadline:
            replies += self.pull_messages(ids)
            time.sleep(0.01)
        return replies

    def _handle(self, node: int, message: Message) -> None:
        context = Context(1, node, dict(self.nodes[node]), RecordDict(), {})
        try:
            reply = self._through_the_wire(self._app(message, context))
        except Exception as error:
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)
        self._replies[message.metadata.message_id] = reply

    def _through_the_wire(self, message: Message) -> Message:
        contents = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
        self.sent += contents.values()
        return inflate_object_from_contents(message.object_id, contents)
