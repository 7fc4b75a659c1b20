"""What sites may answer, and nothing else: whatever does not fit is rejected, and harms its sender only."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StrictInt, ValidationError

from dpfed.protocol.messages import OtherVersion, Packet, Untrusted, verify

_SIGNATURE_BYTES = 64


class Reason(StrEnum):
    """Why a site does not answer. No other word about it leaves the site."""

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
    """An answer that is not what the terms allow; the phrase goes into the journal."""


class Answer(BaseModel):
    """Base of all answers: what their headers hold beyond kind, terms and digest."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    site: StrictInt


def _decoded(text: Any) -> bytes:
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
    """What a site gives the others, and the server, to mask a step with."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    step: StrictInt
    public: _Base64
    envelopes: _Base64  # for each other site, in the order of their numbers; all have the same length


class Hello(Answer):
    """A greeting returned."""

    nonce: str
    frozen: str
    last: StrictInt  # the latest step that it took part in; -1: none
    session: Annotated[str, Field(max_length=64)]  # another one whenever the worker is started
    release: _Release
    offer: Offer | None = None


class Sum(Answer):
    """A site's sum, which is the vector."""

    step: StrictInt
    release: _Release
    roster: _Signature | None = None  # of the roster that it was masked for, where sites may drop out
    offer: Offer | None = None


class Vote(Answer):
    """Who arrived, as the site was told."""

    step: StrictInt
    vote: _Signature


class Shares(Answer):
    """What takes masks away: a share for each member of the roster, in order."""

    step: StrictInt
    shares: _Base64


class Refused(Answer):
    """No answer."""

    reason: Reason
    about: StrictInt | None = None  # the site whose fault it seems to be


KINDS: dict[type[Answer], str] = {Hello: "hello", Sum: "sum", Vote: "vote", Shares: "shares", Refused: "refusal"}


_Kind = TypeVar("_Kind", bound=Answer)


def read(packet: Packet | None, kind: type[_Kind], site: int, signing_key: str, terms: str) -> _Kind:
    """An answer of a site.

    Args:
        packet: what came; ``None``: nothing.
        kind: of answer that was asked for.
        site: that was asked.
        signing_key: the site's.
        terms: fingerprint.

    Raises:
        Rejected: for everything else than a signed answer of that kind; whatever a site sends, nothing else is raised.
    """
    if packet is None:
        raise Rejected("its answer failed to come")
    try:
        header = verify(packet, signing_key, terms)
        if header.get("kind") == KINDS[Refused]:
            refused = Refused.model_validate(header)
            about = "" if refused.about is None else f" (site {refused.about})"
            raise Rejected(f"refused: {refused.reason}{about}")
        if header.get("kind") != KINDS[kind] or header.get("site") != site:
            raise Rejected("an answer to another request")
        return kind.model_validate(header)
    except OtherVersion as error:
        raise Rejected(f"it speaks {error}: install the same release on both") from error
    except Untrusted as error:
        raise Rejected("an answer that the site did not sign") from error
    except (ValidationError, ValueError, RecursionError) as error:
        raise Rejected("an invalid answer") from error
