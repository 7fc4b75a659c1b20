"""What a site answers to its kit: its card, the public keys of its SuperNodes, and whether it has left; signed by the site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from pydantic import Field, ValidationError

from dpfed import __version__
from dpfed.config import Section
from dpfed.errors import UserError
from dpfed.federation.protocol.cards import SiteCard, hidden_text
from dpfed.federation.protocol.identity import Identity, is_signed
from dpfed.federation.protocol.messages import PROTOCOL
from dpfed.federation.provisioning.kits import Manifest
from dpfed.federation.provisioning.project import Name
from dpfed.federation.provisioning.services import Slot
from dpfed.files.reading import read_text

_DOMAIN = b"dpfed reply 1\0"


class Reply(Section):
    """A site's answer to its kit."""

    format: Literal[1] = 1
    federation: Name
    invitation: str
    card: SiteCard
    node_keys: dict[Slot, str] = Field(min_length=1, description="public keys by slot, as OpenSSH writes them")
    left: bool = False
    written: int = Field(
        ge=0, description="seconds since 1970; the newest reply of a site counts, and a later one has a larger"
    )
    protocol: int = PROTOCOL
    release: str = __version__

    def signed(self, identity: Identity) -> str:
        """The content of a reply's file."""
        text = self.model_dump_json(indent=1, exclude_none=True)
        return json.dumps({"signature": identity.sign(_DOMAIN + text.encode()).hex(), "reply": text}, indent=1) + "\n"

    @classmethod
    def load(cls, path: Path) -> Reply:
        """Reads a reply that a site sent.

        Raises:
            UserError: if it is none, or its site did not sign it.
        """
        try:
            outer = json.loads(read_text(path))
            text, signature = outer["reply"], bytes.fromhex(outer["signature"])
            if hidden_text(json.loads(text)):
                raise ValueError
            reply = cls.model_validate_json(text)
        except OSError as error:
            raise UserError(f"cannot read the reply {path}: {error.strerror or error}.") from error
        except (ValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(f"{path} is no site's reply: `dpfed site setup` writes reply.json.") from error
        if not is_signed(_DOMAIN + text.encode(), signature, reply.card.signing_key):
            raise UserError(f"{path} is not as its site signed it: ask the site to send reply.json again.")
        return reply

    def refuse(self, path: Path, kit: Manifest | None) -> None:
        """Refuses a reply that does not answer a kit.

        Args:
            path: of the reply, for messages.
            kit: of the site that it names; ``None``: there is no such site.

        Raises:
            UserError: saying why.
        """
        name = self.card.name
        if kit is None:
            raise UserError(f"{path} is the reply of {name!r}, which is no site of this project: remove it, or add the site.")
        if self.federation != kit.federation or self.invitation != kit.invitation:
            raise UserError(
                f"{path} says that it is of {name}, and answers another kit than the one that was made for {name}: send "
                "the kit again, and have the site reply to that."
            )
        if self.protocol != PROTOCOL:
            raise UserError(
                f"{name} runs dpfed {self.release}, which speaks protocol {self.protocol}, and this is dpfed {__version__} "
                f"with protocol {PROTOCOL}: install the same release on both sides."
            )
        for key in self.node_keys.values():
            if not is_node_key(key):
                raise UserError(f"{path} holds an invalid key of a SuperNode: `dpfed site setup` makes valid ones.")


def is_node_key(line: str) -> bool:
    """Whether a text is the public key of a SuperNode."""
    try:
        key = load_ssh_public_key(line.encode())
    except ValueError:
        return False
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)
