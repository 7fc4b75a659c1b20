"""A starter kit: one file that the coordinator signs and gives to one participant.

A kit says who made it, for which site, at which address the site reaches the coordinator, and which authority signs the
coordinator's certificate. It is signed with the key that later signs the coordinator's requests, and holds no private key. The
first kit of a site is an invitation; a later one holds the terms, too.

The module also has a site's reply to its kit, which the site signs. A reply holds the site's card, the public key of its
SuperNode, and whether the site has left.
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

_KIT, _REPLY = b"dpfed kit 1\0", b"dpfed reply 1\0"  # a signature for one is not valid for the other
_RELEASE = Field(__version__, pattern="^[0-9A-Za-z.+!-]{1,64}$", description="release of dpfed on the side that wrote this")


class Origin(Section):
    """The fields that are the same in all kits of a site."""

    federation: Name
    site: Name
    coordinator: str = KEY
    invitation: str = Field(pattern="^[0-9a-f]{32}$", description="random string, which the site's reply repeats")


class Kit(Origin):
    """A coordinator's kit for one site."""

    format: Literal[1] = 1
    serial: int = Field(ge=1, description="a kit with a higher number replaces this one")
    superlink: str = Field(description="address for the SuperNode, HOST:PORT")
    authority: str = Field(pattern="^([0-9a-f]{2})+$", description="certificate of the coordinator's authority, PEM as hex")
    terms: dict[str, Any] | None = Field(None, description="the terms, once they are made")
    protocol: int = PROTOCOL
    release: str = _RELEASE

    @field_validator("superlink")
    @classmethod
    def _is_address(cls, superlink: str) -> str:
        if not is_address(superlink):  # the address goes into units and commands
            raise ValueError("expected HOST:PORT")
        return superlink

    @field_validator("authority")
    @classmethod
    def _is_certificate(cls, authority: str) -> str:
        load_pem_x509_certificates(bytes.fromhex(authority))
        return authority

    @property
    def origin(self) -> Origin:
        """The coordinator, federation, site and invitation of the kit."""
        return Origin(**{name: getattr(self, name) for name in Origin.model_fields})

    @property
    def folder(self) -> str:
        """Name of the site's folder."""
        return f"{self.federation}-{self.site}"

    def signed(self, identity: Identity) -> str:
        """Returns the content of the kit's file, with a signature."""
        return _sealed(_KIT, self, identity)

    @classmethod
    def load(cls, path: Path) -> Kit:
        """Reads a kit.

        Raises:
            UserError: If the file cannot be read, is not a kit, or was changed after its coordinator signed it.
        """
        try:
            signed, signature, tree = _opened(path, _KIT)
            kit = cls.model_validate(tree)
        except OSError as error:
            raise UserError(f"cannot read the kit {path}: {error.strerror or error}. [kit-unread]") from error
        except (ValidationError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{path} is not a kit of this release of dpfed: install the coordinator's release, or ask the coordinator for "
                "the kit again. [kit-file]"
            ) from error
        if not is_signed(signed, signature, kit.coordinator):
            raise UserError(f"{path} is not as it was signed: ask the coordinator for the kit again. [kit-altered]")
        return kit


def spoken(signing_key: str) -> str:
    """Returns the fingerprint of a key, in groups that can be read out."""
    digest = hashlib.sha256(bytes.fromhex(signing_key)).hexdigest()[:32]
    return " ".join(digest[at : at + 4] for at in range(0, 32, 4))


def is_spoken(text: str, signing_key: str) -> bool:
    """Returns whether a text is the fingerprint of a key; spaces, dashes and case do not matter."""
    return re.sub(r"[\s:-]", "", text).lower() == spoken(signing_key).replace(" ", "")


class Reply(Section):
    """A site's reply to its kit."""

    format: Literal[1] = 1
    federation: Name
    invitation: str
    card: SiteCard
    node_key: str = Field(description="public key of the site's SuperNode, as OpenSSH writes it")
    left: bool = False
    written: int = Field(
        ge=0, description="time in seconds since 1970, larger in each later reply of a site; the newest reply counts"
    )
    protocol: int = PROTOCOL
    release: str = _RELEASE

    def signed(self, identity: Identity) -> str:
        """Returns the content of the reply's file, with a signature."""
        return _sealed(_REPLY, self, identity)

    @classmethod
    def load(cls, path: Path) -> Reply:
        """Reads a reply that a site sent.

        Raises:
            UserError: If the file cannot be read, is not a reply, or its site did not sign it.
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
            path: File of the reply, for messages.
            kit: Kit of the site that the reply names; ``None``: there is no such site.

        Raises:
            UserError: If the reply does not answer the kit; the message says why.
        """
        name = self.card.name
        if kit is None:
            raise UserError(
                f"{path} names the site {name!r}, which is not in the project: remove the file, or add the site. "
                "[kit-reply-stranger]"
            )
        if self.federation != kit.federation or self.invitation != kit.invitation:
            raise UserError(
                f"{path} names the site {name}, but answers another kit than the one that was made for {name}: send "
                "the kit again, and have the site run `dpfed site setup` with that kit in a new folder (--into) and send the "
                "new reply. "
                "[kit-reply-other]"
            )
        if self.protocol != PROTOCOL:
            raise UserError(
                f"{name} runs dpfed {self.release}, which speaks protocol {self.protocol}, but this is dpfed {__version__} "
                f"with protocol {PROTOCOL}: install the same release on both sides. [kit-reply-release]"
            )
        if not _is_node_key(self.node_key):
            raise UserError(
                f"{path} holds an invalid SuperNode key: ask the site to remove keys/node, keys/node.pub and reply.json from "
                "its folder, and to run `dpfed site setup` again with the kit.json in that folder and with --into the folder's "
                "parent. [kit-reply-key]"
            )


def _sealed(domain: bytes, content: Section, identity: Identity) -> str:
    """Returns the text of a signed file, which `_opened` reads."""
    text = content.model_dump_json(indent=1, exclude_none=True)
    return json.dumps({"signature": identity.sign(domain + text.encode()).hex(), "content": text}, indent=1) + "\n"


def _opened(path: Path, domain: bytes) -> tuple[bytes, bytes, Any]:
    """Returns the signed bytes of a file, the signature, and the content. This function does not verify the signature.

    Raises:
        ValueError: If the content is not JSON, repeats a name, or holds hidden characters.
    """
    outer = json.loads(read_text(path), object_pairs_hook=_distinct)
    tree = json.loads(outer["content"], object_pairs_hook=_distinct)
    if hidden_text(tree):
        raise ValueError
    return domain + outer["content"].encode(), bytes.fromhex(outer["signature"]), tree


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object, given its pairs of name and value.

    Raises:
        ValueError: If a name is repeated: programs that read JSON differ in which of the values they take.
    """
    if len(pairs) != len(dict(pairs)):
        raise ValueError
    return dict(pairs)


def _is_node_key(line: str) -> bool:
    """Returns whether a text is the public key of a SuperNode, as OpenSSH writes it."""
    try:
        key = load_ssh_public_key(line.encode())
    except ValueError:
        return False
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)
