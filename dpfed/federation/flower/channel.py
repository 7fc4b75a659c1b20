"""Carries packets over Flower, on the coordinator's side.

This module also converts between a packet and the content of a Flower message: plain bytes in Flower's records, so nothing has
to be deserialised.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from dpfed.federation.flower.internals import RunNotRunningException, limit_replies, replies_of_at_most, shorten_fetching
from dpfed.protocol.messages import MOST_VECTOR, Packet, PacketError, failure_of

MESSAGE_TYPE = "query.packet"

_RECORD, _VECTOR, _RAW = "packet", "vector", "dpfed.raw"


def vector_record(vector: bytes | bytearray | memoryview) -> ArrayRecord:
    """Converts a vector to a Flower record.

    Flower splits the record into chunks, and stores each chunk once, however many messages carry it.
    """
    data = bytes(vector)
    return ArrayRecord({_VECTOR: Array("uint8", (len(data),), _RAW, data)})


def content_of(packet: Packet, vector: ArrayRecord | None = None) -> RecordDict:
    """Converts a packet to the content of a Flower message.

    Args:
        packet: Packet to send.
        vector: Record of the packet's vector, if there is one already; messages that share a record hash it once. Default: a
            new record.
    """
    content = RecordDict({_RECORD: ConfigRecord({"header": packet.header, "signature": packet.signature})})
    if len(packet.vector):
        content[_VECTOR] = vector or vector_record(packet.vector)
    return content


def packet_in(content: RecordDict) -> Packet:
    """Returns the packet in the content of a Flower message.

    Raises:
        PacketError: If the content does not contain a packet.
    """
    try:
        header, signature = content.config_records[_RECORD]["header"], content.config_records[_RECORD]["signature"]
        vector = content.array_records[_VECTOR][_VECTOR].data if _VECTOR in content else b""
    except (KeyError, TypeError, AttributeError) as error:
        raise PacketError("the message does not contain a packet") from error
    if not (isinstance(header, bytes) and isinstance(signature, bytes) and isinstance(vector, bytes)):
        raise PacketError("the message does not contain a packet whose parts are bytes")
    return Packet(header, signature, vector)


_AROUND = 1 << 16, 1 << 7  # bytes that Flower adds to a packet: a fixed number, and one byte for every 128 bytes of the packet
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25  # seconds between looks for a reply; Flower's own loop takes 3

_log = logging.getLogger(__name__)


class FlowerChannel:
    """Sends packets to sites and collects their answers.

    Args:
        grid: Flower's `Grid` of the running ServerApp.
    """

    def __init__(self, grid: Grid) -> None:
        shorten_fetching()
        limit_replies()
        self._grid = grid
        self._silent: dict[str, str] = {}  # last logged reason why an address gave no answer

    def sites(self) -> list[str]:
        """Returns the addresses of the sites that are connected now."""
        return sorted(str(node) for node in self._grid.get_node_ids())

    def exchange(
        self, packets: dict[str, Packet], seconds: float, most: int = MOST_VECTOR
    ) -> Iterator[tuple[str, Packet | None]]:
        """Sends packets and yields the answers as they come, until all have come or time is up.

        An answer that comes later is never read. A site whose answer comes slowly, or never ends, delays no other site.

        Args:
            packets: Packets to send, by address.
            seconds: Longest wait from now, in seconds.
            most: Largest size of an answer, in bytes; default: 8 GiB.

        Yields:
            An address with its answer. The answer is ``None`` if Flower does not take the packet, if the site or Flower
            reports an error in place of an answer, or if the answer is too long or cannot be read.

        Raises:
            RunNotRunningException: If the run was stopped.
        """
        deadline = time.monotonic() + seconds
        sent = self._push(packets, seconds)
        answers: queue.SimpleQueue[tuple[str, Packet | RunNotRunningException | None]] = queue.SimpleQueue()
        for address in packets.keys() - sent.keys():
            answers.put((address, None))
        # One thread per site: fetching a reply that is still on its way blocks until all of it has come.
        for address, message in sent.items():
            threading.Thread(target=self._await, args=(address, message, deadline, most, answers), daemon=True).start()
        for _ in packets:
            try:
                address, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            if isinstance(answer, RunNotRunningException):
                raise answer
            yield address, answer

    def _push(self, packets: dict[str, Packet], seconds: float) -> dict[str, str]:
        """Sends all packets.

        Returns:
            The ids of the messages by address, without the messages that Flower refuses.
        """
        records: dict[int, ArrayRecord] = {}  # by the identity of the vector: sites often get the same one
        messages = []
        for address, packet in packets.items():
            if id(packet.vector) not in records:
                records[id(packet.vector)] = vector_record(packet.vector)
            content = content_of(packet, records[id(packet.vector)])
            messages.append(Message(content, int(address), MESSAGE_TYPE, ttl=seconds))
        ids = self._grid.push_messages(messages) if messages else []
        return {address: message for address, message in zip(packets, ids, strict=True) if message}

    def _await(self, address: str, message: str, deadline: float, most: int, answers: queue.SimpleQueue) -> None:
        """Puts one site's answer into the queue, if it comes in time."""
        pause = _FIRST_PAUSE
        try:
            while time.monotonic() < deadline:
                with replies_of_at_most(most + _AROUND[0] + most // _AROUND[1]):
                    replies = list(self._grid.pull_messages([message]))
                for reply in replies:
                    answers.put((address, self._heard(address, _answer(address, message, reply, most))))
                    return
                time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
                pause = min(1.5 * pause, _LONGEST_PAUSE)
        except RunNotRunningException as error:
            answers.put((address, error))
        except Exception as error:  # a site can send what Flower cannot read
            answers.put((address, self._heard(address, f"its answer cannot be read ({type(error).__name__})")))

    def _heard(self, address: str, answer: Packet | str) -> Packet | None:
        """Returns a packet as it is. Given the reason for a missing answer, returns ``None``, and logs each new reason once."""
        if not isinstance(answer, str):
            self._silent.pop(address, None)
            return answer
        if self._silent.get(address) != answer:
            _log.warning("SuperNode %s: %s", address, answer)
        self._silent[address] = answer
        return None


def _answer(address: str, message: str, reply: Message, most: int) -> Packet | str:
    """Returns the packet in a reply, or the reason why there is none.

    Raises:
        PacketError: If the reply holds no packet.
        ValueError: If the reply is to another message.
    """
    if reply.has_error():
        return f"no answer (Flower's error {reply.error.code})"
    if reply.metadata.reply_to_message_id != message or reply.metadata.src_node_id != int(address):
        raise ValueError("a reply to another message")
    packet = packet_in(reply.content)
    if reason := failure_of(packet):
        return f"no answer ({reason})"
    if (length := len(packet.header) + len(packet.signature) + len(packet.vector)) > most:
        return f"no answer ({length} bytes, at most {most} are allowed)"
    return packet
