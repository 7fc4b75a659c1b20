"""What a site tells about itself, and the fingerprint by which sites make sure of each other."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Any

from pydantic import Field

from dpfed.config import Section
from dpfed.errors import UserError
from dpfed.files.reading import read_text

KEY = Field(pattern="^[0-9a-f]{64}$", description="a public key, hex")
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, direction, halves of characters, ends of lines


class SiteCard(Section):
    """What a site tells about itself; public."""

    name: str = Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    records: int = Field(ge=1, description="training records, as declared")
    units: int | None = Field(None, ge=1, description="units of these records, where they name any")
    unit_name: str | None = Field(
        None, max_length=64, pattern=r"^[^\p{C}\p{Zl}\p{Zp}]*$", description="what such a unit is called, such as 'patient'"
    )
    signing_key: str = KEY
    exchange_key: str = KEY
    contents: str | None = Field(
        None, pattern="^[0-9a-f]{32}$", description="fingerprint of the records, keyed unless they are public"
    )

    @property
    def fingerprint(self) -> str:
        """Hash of the card, in groups that can be read out: what the sites compare with each other."""
        card = {name: value for name in SiteCard.model_fields if (value := getattr(self, name)) is not None}
        digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()[:32]
        return " ".join(digest[at : at + 4] for at in range(0, 32, 4))

    @classmethod
    def load(cls, path: Path) -> SiteCard:
        """Reads a file that a site made.

        Raises:
            UserError: if it is not a card.
        """
        try:
            tree = json.loads(read_text(path))
            if found := hidden_text(tree):
                raise UserError(f"{path} holds characters that terminals do not show ({found}): do not use it. [card-hidden]")
            return cls.model_validate(tree)
        except OSError as error:
            raise UserError(f"cannot read the card {path}: {error.strerror or error}. [card-unread]") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not a site's card: `dpfed site setup` writes card.json. [card-format]") from error


def hidden_text(tree: Any) -> str:
    """The first text in a tree of JSON with characters that a terminal acts on instead of showing them; empty if none has.

    Raises:
        RecursionError: if it is nested too deeply.
    """
    if isinstance(tree, dict):
        return next(filter(None, map(hidden_text, (*tree, *tree.values()))), "")
    if isinstance(tree, list):
        return next(filter(None, map(hidden_text, tree)), "")
    hidden = isinstance(tree, str) and any(unicodedata.category(character) in _HIDDEN for character in tree)
    return ascii(tree[:40]) if hidden else ""
