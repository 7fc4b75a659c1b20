"""Keeps the list of other sites' public cards (`SiteCard`) that a site's operator has confirmed by asking these sites.

Without this list, a coordinator could invent members of the federation.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically
from dpfed.files.reading import read_text
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.terms import Terms

_FINGERPRINT = re.compile("[0-9a-f]{4}( [0-9a-f]{4}){7}")


def confirmed_in(path: Path) -> list[str]:
    """Returns the fingerprints in a file of confirmed cards; an empty list if the file does not exist.

    Raises:
        UserError: If the file is damaged.
    """
    if not path.is_file():
        return []
    try:
        cards = json.loads(read_text(path))
    except (ValueError, RecursionError):
        cards = None
    if not isinstance(cards, list) or not all(isinstance(each, str) and _FINGERPRINT.fullmatch(each) for each in cards):
        raise UserError(
            f"{path} is damaged: remove it, and confirm the other sites' cards again: `dpfed site confirm`. [card-list-damaged]"
        )
    return cards


def confirm(path: Path, cards: list[str], own: SiteCard, terms: Terms | None) -> None:
    """Adds the fingerprints of other sites' cards to a file. These sites have read them out to this site's operator.

    Args:
        path: File of the confirmed cards; it is made if it does not exist.
        cards: Fingerprints of the other sites' cards.
        own: This site's card.
        terms: Terms that the site has joined; ``None``: it has joined none.

    Raises:
        UserError: If one of `cards` is not a fingerprint, is that of this site's own card, or belongs to no member of the
            terms; or if the file is damaged.
    """
    given = [_fingerprint(card) for card in cards]
    if own.fingerprint in given:
        raise UserError(f"{own.fingerprint} is this site's own card: give the fingerprints of the others. [card-own]")
    if terms is not None:
        refuse_strangers(terms, given)
    write_atomically(path, json.dumps(sorted({*confirmed_in(path), *given}), indent=1) + "\n")


def refuse_strangers(terms: Terms, confirmed: list[str], listed: Path | None = None) -> None:
    """Refuses terms that lack a confirmed card: the coordinator may have replaced this card by another.

    Args:
        terms: Terms of the federation.
        confirmed: Fingerprints of confirmed cards.
        listed: File that holds these fingerprints, for the message; default: no file holds them.

    Raises:
        UserError: If a confirmed card is missing; the message names it.
    """
    members = {member.fingerprint for member in terms.sites}
    if strange := [each for each in confirmed if each not in members]:
        again = "" if listed is None else f" If it is wrong, remove {listed}, and `dpfed site confirm` the right cards again."
        raise UserError(
            f"no member of these terms has a card with the fingerprint {strange[0]}: ask the card's site to read its "
            f"fingerprint out again. If it is right, the coordinator has left that site out, or replaced its card."
            f"{again} [card-stranger]"
        )


def _fingerprint(card: str) -> str:
    """Returns the usual form of a fingerprint that somebody wrote down: spaces, dashes and case do not matter."""
    plain = re.sub(r"[\s:-]", "", card).lower()
    if not re.fullmatch("[0-9a-f]{32}", plain):
        raise UserError(
            f"{card!r} is not the fingerprint of a card: expected 32 hexadecimal digits. [card-fingerprint]",
            command="On the command line: put quotes around a fingerprint that has spaces.",
        )
    return " ".join(plain[at : at + 4] for at in range(0, 32, 4))
