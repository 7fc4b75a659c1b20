"""A starter kit: what the coordinator gives one participant, in one file that it signs.

It says who made it, for which site, where the coordinator is reached and by which authority its certificate is signed. It is
signed with the key that later signs the coordinator's questions, and holds no key. The first kit of a site is an invitation; a
later one holds the terms, too.

Also here: what a site answers to its kit: its card, the public key of its SuperNode, and whether it has left; signed by the
site.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from cryptography.x509 import load_pem_x509_certificates
from pydantic import Field, ValidationError, field_validator

from dpfed import __version__
from dpfed.config import Section
from dpfed.errors import UserError
from dpfed.federation.provisioning.project import Name, is_address
from dpfed.files.reading import read_text
from dpfed.protocol.cards import KEY, SiteCard, hidden_text
from dpfed.protocol.identity import Identity, is_signed
from dpfed.protocol.messages import PROTOCOL

_KIT, _REPLY = b"dpfed kit 1\0", b"dpfed reply 1\0"  # a signature for one purpose fits no other
_RELEASE = Field(__version__, pattern="^[0-9A-Za-z.+!-]{1,64}$", description="of dpfed, that of the side that wrote this")


class Origin(Section):
    """What never changes from one kit of a site to the next."""

    federation: Name
    site: Name
    coordinator: str = KEY
    invitation: str = Field(pattern="^[0-9a-f]{32}$", description="known to whoever had the kit: names the site in its reply")


class Kit(Origin):
    """What a coordinator gives one site."""

    format: Literal[1] = 1
    serial: int = Field(ge=1, description="a kit with a higher one replaces this one")
    superlink: str = Field(description="where the SuperNode connects to, HOST:PORT")
    authority: str = Field(pattern="^([0-9a-f]{2})+$", description="certificate that signs the coordinator's, PEM as hex")
    terms: dict[str, Any] | None = Field(None, description="the terms, once they are made")
    protocol: int = PROTOCOL
    release: str = _RELEASE

    @field_validator("superlink")
    @classmethod
    def _is_address(cls, superlink: str) -> str:
        if not is_address(superlink):  # it goes into units and commands
            raise ValueError("expected HOST:PORT")
        return superlink

    @field_validator("authority")
    @classmethod
    def _is_certificate(cls, authority: str) -> str:
        load_pem_x509_certificates(bytes.fromhex(authority))
        return authority

    @property
    def origin(self) -> Origin:
        """Whose kit it is, and for whom."""
        return Origin(**{name: getattr(self, name) for name in Origin.model_fields})

    @property
    def folder(self) -> str:
        """The name of the site's folder."""
        return f"{self.federation}-{self.site}"

    def signed(self, identity: Identity) -> str:
        """The content of a kit's file."""
        return _sealed(_KIT, self, identity)

    @classmethod
    def load(cls, path: Path) -> Kit:
        """Reads a kit.

        Raises:
            UserError: if it is none, or is not as its coordinator signed it.
        """
        try:
            signed, signature, tree = _opened(path, _KIT)
            kit = cls.model_validate(tree)
        except OSError as error:
            raise UserError(f"cannot read the kit {path}: {error.strerror or error}. [kit-unread]") from error
        except (ValidationError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} is not this release's kit: `dpfed federation provision` makes it. [kit-file]") from error
        if not is_signed(signed, signature, kit.coordinator):
            raise UserError(f"{path} is not as it was signed: ask the coordinator for the kit again. [kit-altered]")
        return kit


def spoken(signing_key: str) -> str:
    """The fingerprint of a key, in groups that can be read out."""
    digest = hashlib.sha256(bytes.fromhex(signing_key)).hexdigest()[:32]
    return " ".join(digest[at : at + 4] for at in range(0, 32, 4))


def is_spoken(text: str, signing_key: str) -> bool:
    """Whether somebody wrote down the fingerprint of a key; spaces, dashes and case do not matter."""
    return re.sub(r"[\s:-]", "", text).lower() == spoken(signing_key).replace(" ", "")


class Reply(Section):
    """A site's answer to its kit."""

    format: Literal[1] = 1
    federation: Name
    invitation: str
    card: SiteCard
    node_key: str = Field(description="the public key of its SuperNode, as OpenSSH writes it")
    left: bool = False
    written: int = Field(
        ge=0, description="seconds since 1970; the newest reply of a site counts, and a later one has a larger"
    )
    protocol: int = PROTOCOL
    release: str = _RELEASE

    def signed(self, identity: Identity) -> str:
        """The content of a reply's file."""
        return _sealed(_REPLY, self, identity)

    @classmethod
    def load(cls, path: Path) -> Reply:
        """Reads a reply that a site sent.

        Raises:
            UserError: if it is none, or its site did not sign it.
        """
        try:
            signed, signature, tree = _opened(path, _REPLY)
            reply = cls.model_validate(tree)
        except OSError as error:
            raise UserError(f"cannot read the reply {path}: {error.strerror or error}. [kit-reply-unread]") from error
        except (ValidationError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} is not a site's reply: `dpfed site setup` writes reply.json. [kit-reply-file]") from error
        if not is_signed(signed, signature, reply.card.signing_key):
            raise UserError(f"{path} is not as its site signed it: ask the site to send reply.json again. [kit-reply-altered]")
        return reply

    def refuse(self, path: Path, kit: Kit | None) -> None:
        """Refuses a reply that does not answer a kit.

        Args:
            path: of the reply, for messages.
            kit: of the site that it names; ``None``: there is no such site.

        Raises:
            UserError: saying why.
        """
        name = self.card.name
        if kit is None:
            raise UserError(
                f"{path} is of {name!r}, which is not a site of this project: remove it, or add the site. [kit-reply-stranger]"
            )
        if self.federation != kit.federation or self.invitation != kit.invitation:
            raise UserError(
                f"{path} says that it is of {name}, and answers another kit than the one that was made for {name}: send "
                "the kit again, and have the site reply to that. [kit-reply-other]"
            )
        if self.protocol != PROTOCOL:
            raise UserError(
                f"{name} runs dpfed {self.release}, which speaks protocol {self.protocol}, and this is dpfed {__version__} "
                f"with protocol {PROTOCOL}: install the same release on both sides. [kit-reply-release]"
            )
        if not _is_node_key(self.node_key):
            raise UserError(f"{path} holds an invalid SuperNode key: `dpfed site setup` makes it. [kit-reply-key]")


def _sealed(domain: bytes, content: Section, identity: Identity) -> str:
    text = content.model_dump_json(indent=1, exclude_none=True)
    return json.dumps({"signature": identity.sign(domain + text.encode()).hex(), "content": text}, indent=1) + "\n"


def _opened(path: Path, domain: bytes) -> tuple[bytes, bytes, Any]:
    """What a file's signature is of, the signature, and what the file says; whatever it holds, nothing is believed yet."""
    outer = json.loads(read_text(path), object_pairs_hook=_distinct)
    tree = json.loads(outer["content"], object_pairs_hook=_distinct)
    if hidden_text(tree):
        raise ValueError
    return domain + outer["content"].encode(), bytes.fromhex(outer["signature"]), tree


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; which of two values under one name counts would depend on the reader."""
    if len(pairs) != len(dict(pairs)):
        raise ValueError
    return dict(pairs)


def _is_node_key(line: str) -> bool:
    """Whether a text is the public key of a SuperNode."""
    try:
        key = load_ssh_public_key(line.encode())
    except ValueError:
        return False
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)
