"""The Flower ClientApp of a site: passes packets to the site worker through the local socket, and returns its answers.

By default, Flower starts a process for every message. So this module imports neither torch nor anything else that loads slowly.
"""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from dpfed.federation.flower.channel import content_of, packet_in
from dpfed.federation.site.local_socket import ask
from dpfed.protocol.messages import Failure, Packet, PacketError, alleged, failed

_RESTART, _PAUSE = 60.0, 0.2  # seconds that a worker may take to restart; seconds between attempts to reach it

app = ClientApp()


@app.query("packet")
def forward(message: Message, context: Context) -> Message:
    """Answers a message with the site worker's answer, or with a `Failure`, the reason why there is no answer."""
    return Message(content_of(_reply(message, context)), reply_to=message)


def _reply(message: Message, context: Context) -> Packet:
    # An exception that escaped would reach the server with its text, which may name a path or worse.
    try:
        return _ask(Path(str(context.node_config["socket"])), packet_in(message.content), message.metadata.ttl)
    except TimeoutError:
        return failed(Failure.TIMEOUT)
    except PacketError:
        return failed(Failure.GARBLED)
    except OSError:
        return failed(Failure.UNREACHABLE)
    except Exception:
        return failed(Failure.INTERNAL)


def _ask(socket: Path, packet: Packet, seconds: float) -> Packet:
    """Returns the worker's answer to a packet.

    A step waits for a worker that is being restarted, because the coordinator already counts on this site.
    """
    end = time.monotonic() + min(_RESTART, seconds / 2)
    while True:
        try:
            return ask(socket, packet, seconds)
        except (ConnectionRefusedError, FileNotFoundError):
            if alleged(packet).get("kind") != "step" or time.monotonic() > end:
                raise
            time.sleep(_PAUSE)
