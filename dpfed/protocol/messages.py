"""Messages between coordinator and sites: a signed header in JSON, and at most one long vector.

Every header names the terms that both parties agreed to, the version of this protocol, and the sender's release of dpfed. The
signature covers the header, and the header holds a hash of the vector. So an intermediary cannot change, mix or invent a
message, and a recorded message is not valid in any other federation.

A packet is one such message, as it travels between the parties.
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
    """Raised for bytes that are not a packet, and for a packet that is too large."""


class Failure(StrEnum):
    """Reasons why a site sends no answer. No further information about a failure leaves the site."""

    UNREACHABLE = "unreachable"  # no site worker behind the socket
    TIMEOUT = "timeout"  # the worker did not answer in time
    GARBLED = "garbled"  # the received bytes are not a packet
    INTERNAL = "internal"  # an error at the site, which its operator can read in the log


Content = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Packet:
    """One message between coordinator and site.

    Attributes:
        header: Kind, terms and other fields of the message, as JSON.
        signature: Sender's signature of the header, 64 bytes; empty if the packet reports a failure.
        vector: Numbers of the message, as bytes, in a format that the terms and the message's kind determine. Default: empty.
    """

    header: bytes
    signature: bytes
    vector: Content = b""


def failed(reason: Failure) -> Packet:
    """Returns the packet that reports a failure in place of an answer."""
    return Packet(json.dumps({"kind": "failure", "reason": reason}).encode(), b"")


def failure_of(packet: Packet) -> Failure | None:
    """Returns the failure that a packet reports; ``None`` for every other packet."""
    return _FAILURES.get(packet.header)


_FAILURES = {failed(reason).header: reason for reason in Failure}


PROTOCOL = 3  # a party with another version is refused; raise the version when a message changes its meaning
LONGEST_HEADER = 1 << 20  # bytes; enough for offers to thousands of sites
_DOMAIN = b"dpfed message 1\0"  # domain separation: a signature for this purpose is not valid for any other


class Untrusted(ValueError):
    """Raised for a message that its alleged sender did not sign for these terms, or that is malformed."""


class OtherVersion(Untrusted):
    """Raised for a message in another version of this protocol. A message that names no version counts as version 1.

    Args:
        speaks: Version of the message; 0 if the message names something that is not a version.
    """

    def __init__(self, speaks: int) -> None:
        super().__init__(f"protocol {speaks}, and this dpfed speaks protocol {PROTOCOL}")


def digest_of(vector: Content) -> str:
    """Returns the SHA-256 hash of a vector, hex, as headers hold it."""
    return hashlib.sha256(vector).hexdigest()


def sign(
    identity: Identity, terms: str, kind: str, vector: bytes | memoryview = b"", digest: str | None = None, **fields: Any
) -> Packet:
    """Signs a message.

    Args:
        identity: Sender's keys.
        terms: Fingerprint of the terms.
        kind: Kind of the message, such as ``step``.
        vector: Vector to send along; default: none.
        digest: Digest of the vector, if it is known already; default: computed here.
        fields: Further header fields, serialisable as JSON.

    Returns:
        The signed packet.
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
    """Verifies a message.

    Args:
        packet: Received packet.
        signing_key: Public signing key of the alleged sender, hex.
        terms: Fingerprint of the terms that the message must name.

    Returns:
        The header's fields.

    Raises:
        Untrusted: If the sender did not sign this message for these terms, or its vector was changed; `OtherVersion` if the
            message is in another version of the protocol.
    """
    if not is_signed(_DOMAIN + packet.header, packet.signature, signing_key):
        raise Untrusted("it is not signed with the sender's key")
    header = alleged(packet)
    if header.get("terms") != terms:
        raise Untrusted("it is about other terms")
    if (speaks := header.get("protocol", 1)) != PROTOCOL:
        raise OtherVersion(speaks if type(speaks) is int and 0 < speaks < 1000 else 0)
    if header.get("vector") != digest_of(packet.vector):
        raise Untrusted("its numbers were changed on the way")
    return header


def alleged(packet: Packet) -> dict[str, Any]:
    """Parses a header without verifying the signature; returns {} if the header is over 1 MiB long, or not a JSON object."""
    try:
        header = json.loads(packet.header) if len(packet.header) <= LONGEST_HEADER else None
    except (ValueError, RecursionError):  # text that is not JSON, or nested too deeply
        return {}
    return header if isinstance(header, dict) else {}
