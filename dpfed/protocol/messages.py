"""What coordinator and sites say to each other: a signed header in JSON, and at most one long vector.

Every header names the terms that both signed up to, the version of this protocol, and the sender's release of dpfed. The
signature covers the header, and the header holds a hash of the vector, so nobody between the two can change, mix or invent a
message, and a recorded one fits no other federation.

A packet is what travels between the parties of a federation.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dpfed import __version__
from dpfed.protocol.identity import Identity, is_signed

MOST_VECTOR = 8 << 30  # bytes


class PacketError(ValueError):
    """Bytes that are no packet, or a packet that is too large."""


class Failure(StrEnum):
    """Why a site has no answer. No other word about a failure leaves a site."""

    UNREACHABLE = "unreachable"  # no site worker behind the socket
    TIMEOUT = "timeout"  # it did not answer in time
    GARBLED = "garbled"  # what came is not a packet
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
    """Why a packet is not an answer; ``None`` if it is one."""
    return _FAILURES.get(packet.header)


_FAILURES = {failed(reason).header: reason for reason in Failure}


PROTOCOL = 3  # a party that speaks another version is refused; raise it when a message changes its meaning
LONGEST_HEADER = 1 << 20  # bytes: offers for thousands of sites
_DOMAIN = b"dpfed message 1\0"  # a signature for this purpose fits no other


class Untrusted(ValueError):
    """A message that its alleged sender did not sign, or that is none."""


class OtherVersion(Untrusted):
    """A message of a dpfed that speaks another version of this protocol; 1 is that of messages that name none."""

    def __init__(self, speaks: int) -> None:
        super().__init__(f"protocol {speaks}, and this is {PROTOCOL}")


def digest_of(vector: Content) -> str:
    """A hash of a vector, as headers hold it."""
    return hashlib.sha256(vector).hexdigest()


def sign(
    identity: Identity, terms: str, kind: str, vector: bytes | memoryview = b"", digest: str | None = None, **fields: Any
) -> Packet:
    """A signed message.

    Args:
        identity: the sender's.
        terms: fingerprint of the terms.
        kind: what it is about.
        vector: sent along.
        digest: of the vector, where it is known already.
        fields: further content, as JSON knows it.
    """
    header = json.dumps(
        {
            "terms": terms,
            "kind": kind,
            "vector": digest or digest_of(vector),
            "protocol": PROTOCOL,
            "release": __version__,
            **fields,
        },
        sort_keys=True,
    ).encode()
    return Packet(header, identity.sign(_DOMAIN + header), vector)


def verify(packet: Packet, signing_key: str, terms: str) -> dict[str, Any]:
    """The content of a message.

    Args:
        packet: as it came.
        signing_key: the alleged sender's, public.
        terms: fingerprint of the terms that it must name.

    Raises:
        Untrusted: if that sender did not sign it, for these terms; `OtherVersion` if it speaks another version of the protocol.
    """
    if not is_signed(_DOMAIN + packet.header, packet.signature, signing_key):
        raise Untrusted("not signed by its sender")
    header = alleged(packet)
    if header.get("terms") != terms:
        raise Untrusted("about other terms")
    if (speaks := header.get("protocol", 1)) != PROTOCOL:
        raise OtherVersion(speaks if type(speaks) is int and 0 < speaks < 1000 else 0)
    if header.get("vector") != digest_of(packet.vector):
        raise Untrusted("its vector was changed")
    return header


def alleged(packet: Packet) -> dict[str, Any]:
    """What a header says, whoever wrote it; empty if it is none."""
    try:
        header = json.loads(packet.header) if len(packet.header) <= LONGEST_HEADER else None
    except (ValueError, RecursionError):  # of text that is not JSON, or deeper than anything meant
        return {}
    return header if isinstance(header, dict) else {}
