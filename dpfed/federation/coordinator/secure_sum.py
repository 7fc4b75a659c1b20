"""The total of masked sums, at the coordinator. The sites whose sums arrived help to unmask the total."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dpfed.errors import UserError
from dpfed.federation.secure.envelopes import offer_lengths
from dpfed.federation.secure.unmasking import TRIES, Unmasking
from dpfed.protocol.answers import Answer, Offer, Rejected, Shares, Sum, Vote
from dpfed.protocol.messages import Content
from dpfed.protocol.terms import Terms

_REFUSED = {  # why a sum is not added, by the code of the error: for the run's log
    "share-not-in-roster": "it is not in this step's roster",
    "share-vector-twice": "it sent a second sum",
    "share-vector-late": "its sum arrived after the step was closed",
    "share-roster-unsigned": "it has not signed this step's roster",
    "share-shape": "its sum has another length",
}

Ask = Callable[[str, type[Answer], dict[str, Any]], Iterator[tuple[int, Any]]]


class SecureSum:
    """Adds up the masked sums of one step, and unmasks their total.

    Args:
        terms: Terms of the federation.
        step: Training step.
        roster: Each site's offer (its keys for masking this step, see `Offer`), by site number.
        size: Length of a sum.

    Raises:
        UserError: If fewer sites made offers than the trust mode needs, or an offer's public part has the wrong length.
    """

    def __init__(self, terms: Terms, step: int, roster: dict[int, Offer], size: int) -> None:
        self._trust, self._roster = terms.trust_model, roster
        public = {number: offer.public for number, offer in roster.items()}
        self._unmasking = Unmasking(terms.sites, self._trust, terms.fingerprint.encode(), step, public, size)

    def offers_for(self, number: int) -> dict[str, Any]:
        """Returns header fields for one site: the roster's site numbers, and the other sites' envelopes for this site."""
        _, length = offer_lengths(self._trust)
        offers = []
        for other, offer in sorted(self._roster.items()):
            if other != number:
                at = length * (number - (number > other))  # an offer holds no envelope for its own site
                offers.append(offer.envelopes[at : at + length])
        return {"roster": sorted(self._roster), "offers": _text(b"".join(offers))}

    def add(self, number: int, answer: Sum, content: Content) -> None:
        """Adds a site's masked sum.

        Raises:
            Rejected: If the site is not in the roster, has not signed the roster or has sent a sum before, if the sum has a
                wrong length, or if the step is closed.
        """
        try:
            self._unmasking.add(number, np.frombuffer(content, "<u4").astype(np.uint32, copy=False), answer.roster or b"")
        except UserError as error:
            raise Rejected(_REFUSED[error.code]) from error

    def total(self, ask: Ask) -> tuple[np.ndarray | None, str]:
        """Removes the masks from the total, with the help of the sites that sent the masked sums.

        Args:
            ask: Function that sends a request to the sites whose sums arrived, and yields each valid answer with its site
                number. The function receives the kind of the request, the expected class of the answers, and the
                fields of the request.

        Returns:
            The total, shape ``(P,)``, uint32, and an empty string; or ``None`` and the reason why there is no total.

        Raises:
            UserError: If fewer sums have arrived than the trust mode needs.
        """
        arrived = sorted(self._unmasking.close())
        if not self._trust.drops:
            return self._unmasking.total({}), ""
        fields: dict[str, Any] = {"arrived": arrived}
        if not self._unmasking.unanimous:
            for number, answer in ask("confirm", Vote, fields):
                self._unmasking.vote(number, answer.vote)
                if self._unmasking.confirmed:
                    break
            if not self._unmasking.confirmed:
                return None, f"{len(self._unmasking.votes)} sites confirmed the arrivals, {self._trust.least} sites are needed"
        rosters, votes = self._unmasking.rosters, sorted(self._unmasking.votes.items())
        fields |= {"rosters": _text(b"".join(rosters[number] for number in arrived))}
        fields |= {"voters": [number for number, _ in votes], "votes": _text(b"".join(vote for _, vote in votes))}
        return self._revealed(ask("reveal", Shares, fields))

    def _revealed(self, answers: Iterator[tuple[int, Shares]]) -> tuple[np.ndarray | None, str]:
        """Unmasks the total from the fewest answers that can suffice or, if some of their shares are wrong, from all answers.

        Returns:
            The total and an empty string; or ``None`` and the reason if the shares do not suffice.
        """
        reveals: dict[int, bytes] = {}
        for number, answer in answers:
            reveals[number] = answer.shares
            if len(reveals) == self._trust.least:
                try:
                    return self._unmasking.total(reveals, tries=1), ""
                except UserError:  # a share is wrong: the shares of further sites may help
                    continue
        try:
            return self._unmasking.total(reveals, TRIES), ""
        except UserError as error:
            return None, error.sentence


def _text(content: bytes) -> str:
    return b64encode(content).decode()
