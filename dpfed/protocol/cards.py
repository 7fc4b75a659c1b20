"""A site's public card, and the fingerprint by which the sites verify each other's cards."""

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
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode categories: control, format, surrogate, line and paragraph separator


class SiteCard(Section):
    """A site's public description of itself: name, numbers of records and units, and public keys."""

    name: str = Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    records: int = Field(ge=1, description="number of training records, as declared")
    units: int | None = Field(None, ge=1, description="number of privacy units of these records, if the records name any")
    unit_name: str | None = Field(
        None, max_length=64, pattern=r"^[^\p{C}\p{Zl}\p{Zp}]*$", description="name of such a unit, such as 'patient'"
    )
    signing_key: str = KEY
    exchange_key: str = KEY
    contents: str | None = Field(
        None, pattern="^[0-9a-f]{32}$", description="fingerprint of the records, made with a secret key unless they are public"
    )

    @property
    def fingerprint(self) -> str:
        """Hash of the card, in groups of digits that can be read out. Operators of two sites compare it aloud."""
        card = {name: value for name in SiteCard.model_fields if (value := getattr(self, name)) is not None}
        digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()[:32]
        return " ".join(digest[at : at + 4] for at in range(0, 32, 4))

    @classmethod
    def load(cls, path: Path) -> SiteCard:
        """Reads a card file.

        Raises:
            UserError: If the file cannot be read, is not a card, or has characters that terminals do not show.
        """
        try:
            tree = json.loads(read_text(path))
            if hidden := hidden_text(tree):
                raise UserError(f"{path} holds characters that terminals do not show ({hidden}): do not use it. [card-hidden]")
            return cls.model_validate(tree)
        except OSError as error:
            raise UserError(f"cannot read the card {path}: {error.strerror or error}. [card-unread]") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not a site's card: `dpfed site setup` writes card.json. [card-format]") from error


def hidden_text(tree: Any) -> str:
    """Finds the first string in a JSON tree with characters that a terminal interprets instead of showing.

    Returns:
        The first 40 characters of the string, escaped to ASCII; an empty string if the tree has no such characters.

    Raises:
        RecursionError: If the tree is nested too deeply.
    """
    if isinstance(tree, dict):
        return next(filter(None, map(hidden_text, (*tree, *tree.values()))), "")
    if isinstance(tree, list):
        return next(filter(None, map(hidden_text, tree)), "")
    hidden = isinstance(tree, str) and any(unicodedata.category(character) in _HIDDEN for character in tree)
    return ascii(tree[:40]) if hidden else ""
