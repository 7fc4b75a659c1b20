"""A packet as the content of a Flower message: bytes in records, nothing that needs a deserialiser."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dpfed.federation.protocol.packets import Packet, PacketError

MESSAGE_TYPE = "query.packet"

_RECORD, _VECTOR, _RAW = "packet", "vector", "dpfed.raw"


def vector_record(vector: bytes | bytearray | memoryview) -> ArrayRecord:
    """A vector as Flower sends it: in chunks, each of which is stored once however many messages carry it."""
    data = bytes(vector)
    return ArrayRecord({_VECTOR: Array("uint8", (len(data),), _RAW, data)})


def content_of(packet: Packet, vector: ArrayRecord | None = None) -> RecordDict:
    """A packet as the content of a message.

    Args:
        packet: what to send.
        vector: the record of its vector if there is one already; messages that share it hash it once.
    """
    content = RecordDict({_RECORD: ConfigRecord({"header": packet.header, "signature": packet.signature})})
    if len(packet.vector):
        content[_VECTOR] = vector or vector_record(packet.vector)
    return content


def packet_in(content: RecordDict) -> Packet:
    """The packet in the content of a message.

    Raises:
        PacketError: if it holds none.
    """
    try:
        header, signature = content.config_records[_RECORD]["header"], content.config_records[_RECORD]["signature"]
        vector = content.array_records[_VECTOR][_VECTOR].data if _VECTOR in content else b""
    except (KeyError, TypeError, AttributeError) as error:
        raise PacketError("the message holds no packet") from error
    if not (isinstance(header, bytes) and isinstance(signature, bytes) and isinstance(vector, bytes)):
        raise PacketError("the message holds no packet")
    return Packet(header, signature, vector)
