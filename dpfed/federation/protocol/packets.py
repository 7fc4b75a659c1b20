"""What travels between the parties of a federation, and how it goes through a stream socket.

On a socket a packet is the four bytes ``dpf1``, the lengths of its three parts (4, 4 and 8 bytes, big-endian), and the parts.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from enum import StrEnum

MOST_HEADER = 4 << 20  # bytes
MOST_SIGNATURE = 4 << 10
MOST_VECTOR = 8 << 30

_PREFIX = struct.Struct("!4sIIQ")
_MAGIC = b"dpf1"
_PIECE = 1 << 24  # bytes that are set aside before any of them has come


class PacketError(ValueError):
    """Bytes that are no packet, or a packet that is too large."""


class Failure(StrEnum):
    """Why a site has no answer. No other word about a failure leaves a site."""

    UNREACHABLE = "unreachable"  # no site worker behind the socket
    TIMEOUT = "timeout"  # it did not answer in time
    GARBLED = "garbled"  # what came is no packet
    INTERNAL = "internal"  # the site worker's own trouble, which its operator can read in its log


Content = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Packet:
    """One message.

    Attributes:
        header: says what it is about.
        signature: the sender's, of the header.
        vector: numbers, in whatever form the header says.
    """

    header: bytes
    signature: bytes
    vector: Content = b""


def failed(reason: Failure) -> Packet:
    """The packet that says that there is no answer."""
    return Packet(json.dumps({"kind": "failure", "reason": reason}).encode(), b"")


def failure_of(packet: Packet) -> Failure | None:
    """Why a packet is no answer; ``None`` if it is one."""
    return _FAILURES.get(packet.header)


_FAILURES = {failed(reason).header: reason for reason in Failure}


def send_packet(sock: socket.socket, packet: Packet) -> None:
    """Writes a packet.

    Raises:
        PacketError: if it is larger than the other side accepts.
        OSError: from the socket.
    """
    lengths = len(packet.header), len(packet.signature), memoryview(packet.vector).nbytes
    _check(*lengths)
    sock.sendall(_PREFIX.pack(_MAGIC, *lengths) + packet.header + packet.signature)
    if lengths[2]:
        sock.sendall(packet.vector)


def receive_packet(sock: socket.socket, most: int = MOST_VECTOR) -> Packet:
    """Reads a packet; the vector stays in the buffer that it came into.

    Args:
        sock: to read from.
        most: bytes that the vector may have.

    Raises:
        PacketError: if what comes is none, is too large, or ends too early.
        OSError: from the socket.
    """
    magic, header, signature, vector = _PREFIX.unpack(_read(sock, _PREFIX.size))
    if magic != _MAGIC:
        raise PacketError("what came is no packet")
    _check(header, signature, vector, most)
    return Packet(bytes(_read(sock, header)), bytes(_read(sock, signature)), _read(sock, vector))


def _check(header: int, signature: int, vector: int, most_vector: int = MOST_VECTOR) -> None:
    for name, length, most in (
        ("header", header, MOST_HEADER),
        ("signature", signature, MOST_SIGNATURE),
        ("vector", vector, most_vector),
    ):
        if length > most:
            raise PacketError(f"a {name} of {length:,} bytes is too large: the most is {most:,}")


def _read(sock: socket.socket, length: int) -> bytearray:
    """Exactly so many bytes. Memory grows with what has come, not with what was announced."""
    buffer = bytearray(min(length, _PIECE))
    filled = 0
    while filled < length:
        if filled == len(buffer):
            buffer.extend(bytes(min(length, 2 * filled) - filled))
        with memoryview(buffer) as view, view[filled:] as rest:  # released, for a buffer that is viewed cannot grow
            count = sock.recv_into(rest)
        if not count:
            raise PacketError("the packet ends too early")
        filled += count
    return buffer
