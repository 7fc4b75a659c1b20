"""The schema of the answers that a federation's sites may send.

The coordinator rejects every other answer. A rejection concerns only the site that sent the answer.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StrictInt, ValidationError

from dpfed.protocol.messages import OtherVersion, Packet, Untrusted, verify

_SIGNATURE_BYTES = 64


class Reason(StrEnum):
    """Reasons that a site may give for a refusal. No further information about a refusal leaves the site."""

    UNTRUSTED = "a message that the coordinator did not sign for these terms"
    UNKNOWN = "an unknown question"
    MALFORMED = "an invalid request"
    OVER = "a step that is over, or beyond the plan"
    BUDGET = "the site's budget is spent"
    SHAPE = "parameters of another shape, or not finite"
    OFFER = "another site's offer cannot be opened"
    NO_OFFER = "the site holds no offer of its own for this step: it was started again"
    VIEW = "the sites received different messages about this step"
    VERSION = "the site's dpfed speaks another version of the protocol"
    FAILED = "the site cannot continue; its operator's log says why"


class Rejected(Exception):
    """Raised if a site's answer does not count: it did not arrive, is a refusal, or is not a valid answer to the request.

    The text of this error goes into the journal. If the answer was to a greeting, the operator sees the text, too.
    """


class Answer(BaseModel):
    """Base class of all answers. The fields are read from the message's header; `site` is the number of the answering site."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    site: StrictInt


def _decoded(text: Any) -> bytes:
    """Returns the bytes that a base64 string encodes.

    Raises:
        ValueError: If the value is not a string, or the string is not base64.
    """
    if not isinstance(text, str):
        raise ValueError("no text")
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error


_Base64 = Annotated[bytes, BeforeValidator(_decoded), PlainSerializer(lambda content: b64encode(content).decode())]
_Signature = Annotated[_Base64, Field(min_length=_SIGNATURE_BYTES, max_length=_SIGNATURE_BYTES)]
_Release = Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{1,40}$")]


class Offer(BaseModel):
    """Keys that a site offers for masking one step: a public part for the server, an encrypted envelope for each other site."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    step: StrictInt
    public: _Base64
    envelopes: _Base64  # one for each other site, in the order of the site numbers; all have the same length


class Hello(Answer):
    """A site's reply to the coordinator's greeting.

    Attributes:
        nonce: The greeting's random string, sent back.
        frozen: Digest of the site's weights that are not trained.
        last: Latest step that the site took part in; -1: none.
        session: Random id of the site's worker; a new one at each start.
        release: The site's release of dpfed.
        offer: Keys for masking the step that the greeting names; ``None``: sums are not masked, or the site cannot take that
            step.
    """

    nonce: str
    frozen: str
    last: StrictInt
    session: Annotated[str, Field(max_length=64)]
    release: _Release
    offer: Offer | None = None


class Sum(Answer):
    """A site's answer to a step. The packet's vector is the sum.

    Attributes:
        step: Training step.
        release: The site's release of dpfed.
        roster: Signature of the roster (the sites among which the sum was masked); ``None``: the sum is not masked, or no site
            may drop out.
        offer: Keys for masking the next step; ``None``: sums are not masked, or this step is the last.
    """

    step: StrictInt
    release: _Release
    roster: _Signature | None = None
    offer: Offer | None = None


class Vote(Answer):
    """A site's signature of the set of sites whose sums have arrived, as the server has named this set."""

    step: StrictInt
    vote: _Signature


class Shares(Answer):
    """A site's secret shares, with which the server removes masks: one for each site of the roster, by site number."""

    step: StrictInt
    shares: _Base64


class Refused(Answer):
    """A site's refusal to answer."""

    reason: Reason
    about: StrictInt | None = None  # number of the site that seems to have caused the refusal


KINDS: dict[type[Answer], str] = {Hello: "hello", Sum: "sum", Vote: "vote", Shares: "shares", Refused: "refusal"}


_Kind = TypeVar("_Kind", bound=Answer)


def read(packet: Packet | None, kind: type[_Kind], site: int, signing_key: str, terms: str) -> _Kind:
    """Verifies and parses a site's answer.

    Args:
        packet: Received packet; ``None``: the site sent none.
        kind: Expected kind of answer.
        site: Number of the site that was asked.
        signing_key: The site's public signing key, hex.
        terms: Fingerprint of the terms.

    Returns:
        The validated answer.

    Raises:
        Rejected: If the packet is anything but a signed answer of that kind. Whatever a site sends, no other error is raised.
    """
    if packet is None:
        raise Rejected("its answer did not arrive")
    try:
        header = verify(packet, signing_key, terms)
        if header.get("kind") == KINDS[Refused]:
            refused = Refused.model_validate(header)
            about = "" if refused.about is None else f" (site {refused.about})"
            raise Rejected(f"it refused: {refused.reason}{about}")
        if header.get("kind") != KINDS[kind] or header.get("site") != site:
            raise Rejected("it answered another request, or in the name of another site")
        return kind.model_validate(header)
    except OtherVersion as error:
        raise Rejected(f"it speaks {error}: install the same release on both sides") from error
    except Untrusted as error:
        raise Rejected(f"its answer is not trusted: {error}") from error
    except (ValidationError, ValueError, RecursionError) as error:
        raise Rejected("its answer is not valid") from error
