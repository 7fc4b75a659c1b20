"""The sites that take part now: their addresses, and the masking keys that they offer for the next step.

The module also has the backoff: after a step has waited for a site in vain, the coordinator does not ask this site for a while.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

from dpfed.protocol.answers import Hello, Offer, Rejected, read
from dpfed.protocol.identity import Identity
from dpfed.protocol.messages import Packet, alleged, sign
from dpfed.protocol.terms import Terms

_LONGEST = 600.0  # seconds of the longest pause


class Backoff:
    """Pauses during which a site is not asked, because a step has waited for it in vain.

    The first pause is as long as the step waited. After every further step in a row that has waited for the site in vain, its
    pause is twice as long as before, up to ten minutes.

    Args:
        clock: Function that returns the time in seconds; default: `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._strikes: dict[int, int] = {}
        self._until: dict[int, float] = {}

    def hung(self, number: int, seconds: float) -> None:
        """Notes that a step waited `seconds` for a site in vain, and begins the site's pause."""
        self._strikes[number] = self._strikes.get(number, 0) + 1
        self._until[number] = self._clock() + min(seconds * 2.0 ** min(self._strikes[number] - 1, 32), _LONGEST)

    def answered(self, number: int) -> None:
        """Ends the pauses of a site that has answered a step or was restarted."""
        self._strikes.pop(number, None)
        self._until.pop(number, None)

    def left(self, number: int) -> float:
        """Returns the seconds until a site may be asked again; 0: now."""
        return max(0.0, self._until.get(number, 0.0) - self._clock()) if number in self._until else 0.0


_LEFT = "it has left the federation"


class Channel(Protocol):
    """Carries packets to the sites, and their replies back."""

    def sites(self) -> list[str]:
        """Returns the addresses that can be reached now."""

    def exchange(self, packets: dict[str, Packet], seconds: float, most: int) -> Iterator[tuple[str, Packet | None]]:
        """Sends each address its packet, all at once, and yields the replies until all have come or time is up.

        Args:
            packets: Packets to send, by address.
            seconds: Longest wait, in seconds.
            most: Largest size of a reply, in bytes. A longer reply is not read to its end.

        Yields:
            An address and its reply; ``None`` in place of a reply: the exchange with this address failed.
        """


class Members:
    """Keeps track of the sites that take part now: addresses, offers (masking keys), and why other sites are absent.

    Args:
        terms: Terms of the federation.
        identity: Coordinator's long-term cryptographic keys.
        frozen: Digest of the weights that are not trained.
        note: Function that receives messages for the operator.
        backoff: Pauses for sites for which a step has waited in vain; default: a new `Backoff`.
        left: Function that returns the names of the sites that have left the federation permanently, as far as the operator
            knows; default: none have left.

    Attributes:
        ahead: For each site that is ahead of the coordinator, the latest step that the site has taken part in, by site
            number. A site is ahead if it had already taken part in the step for which it was greeted, or in a later one.
    """

    def __init__(
        self,
        terms: Terms,
        identity: Identity,
        frozen: str,
        note: Callable[[str], None],
        backoff: Backoff | None = None,
        left: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._terms = terms
        self._identity = identity
        self._frozen = frozen
        self._note = note
        self._left = left
        self._backoff = backoff or Backoff()
        self._addresses: dict[int, str] = {}
        self._offers: dict[int, Offer] = {}
        self._sessions: dict[int, str] = {}
        self._why: dict[int, str] = {}  # why a site is absent, or was not taken in
        self.ahead: dict[int, int] = {}

    def present(self, step: int) -> dict[int, str]:
        """Returns the addresses of the sites that can take part in a step, by site number."""
        return {number: address for number, address in sorted(self._addresses.items()) if self._can_take(number, step)}

    def absent(self, step: int) -> dict[int, str]:
        """Returns the names of the sites that cannot take part in a step, by site number."""
        there = self.present(step)
        return {number: site.name for number, site in enumerate(self._terms.sites) if number not in there}

    def absence(self, step: int) -> str:
        """Returns a text that names the sites that cannot take part in a step, with the reasons."""
        return "; ".join(f"{name}: {self._reason(number)}" for number, name in self.absent(step).items())

    def offers(self, step: int) -> dict[int, Offer]:
        """Returns the offers of the sites that can take part in a step, by site number; empty if sums are not masked."""
        return {number: self._offers[number] for number in self.present(step) if number in self._offers}

    def connected(self, addresses: Iterable[str]) -> None:
        """Removes the sites that can no longer be reached: a step that asks them would be charged in vain.

        Args:
            addresses: Addresses that can be reached now.
        """
        there = set(addresses)
        for number, address in list(self._addresses.items()):
            if address not in there:
                self.lose(number, address, "its SuperNode is no longer connected")

    def keep(self, number: int, offer: Offer | None, step: int) -> None:
        """Replaces a site's stored offer. Stores none if `offer` is ``None``, for another step, or does not fit (`_fits`)."""
        self._offers.pop(number, None)
        if offer is not None and offer.step == step and self._fits(offer):
            self._offers[number] = offer

    def answered(self, number: int) -> None:
        """Notes that a site answered a step, and ends the site's pauses."""
        self._backoff.answered(number)

    def lose(self, number: int, address: str, why: str) -> None:
        """Notes why a site is lost, and removes the site unless it has another address by now.

        A removed site must be greeted again.
        """
        if self._addresses.get(number) == address:
            del self._addresses[number]
            self._offers.pop(number, None)
        self._why[number] = why

    def hung(self, number: int, address: str, seconds: float, step: int) -> None:
        """Removes a site that let a step wait until its deadline, and pauses it so that it does not delay the next step."""
        self._backoff.hung(number, seconds)
        self.lose(number, address, f"it did not answer step {step} within {seconds:g} s")
        left = self._backoff.left(number)
        self._note(f"{self._name(number)} did not answer step {step} within {seconds:g} s: it is asked again in {left:.0f} s")

    def greetings(self, addresses: Iterable[str], step: int) -> dict[str, Packet]:
        """Returns a greeting for each of the given addresses whose site cannot take part in a step yet, by address."""
        known = set(self.present(step).values())
        return {address: self._greeting(step) for address in addresses if address not in known}

    def welcome(self, reply: Packet | None, address: str, greeting: Packet, step: int) -> None:
        """Takes in the site that replied to its greeting, if the reply is valid.

        A site is not taken in if it has taken part in this step or a later one already, or if its pause is not over.
        """
        number = alleged(reply).get("site") if reply is not None else None
        if type(number) is not int or not 0 <= number < len(self._terms.sites):
            return
        site = self._terms.sites[number]
        try:
            hello = read(reply, Hello, number, site.signing_key, self._terms.fingerprint)
            if hello.nonce != alleged(greeting)["nonce"]:
                raise Rejected("it answered another request")
            if hello.frozen != self._frozen:
                raise Rejected("its weights that are not trained differ from the coordinator's")
        except Rejected as rejected:
            if number not in self._addresses:
                self._say(number, str(rejected), f"{site.name} is rejected: {rejected}")
            return
        if self._sessions.get(number) != hello.session:
            self._sessions[number] = hello.session
            self._backoff.answered(number)  # the site was restarted
        self.ahead.pop(number, None)
        if hello.last >= step:
            self.ahead[number] = hello.last
            self._why[number] = f"it took part in step {hello.last} already"
            return
        if self._backoff.left(number):
            return
        self._addresses[number] = address
        self._why.pop(number, None)
        self.keep(number, hello.offer, step)

    def missing(self, step: int) -> dict[str, str]:
        """Returns the reasons why sites are not asked in a step, by site name: a site has left, or cannot take part."""
        reasons = {name: self._why_absent(number) for number, name in self.absent(step).items()}
        return {name: why if why == _LEFT else f"not there: {why}" for name, why in reasons.items()}

    def _why_absent(self, number: int) -> str:
        if self._name(number) in self._left():
            return _LEFT
        waits = "it has not sent its keys for masking yet"
        return waits if number in self._addresses else self._why.get(number, "it has not answered the coordinator yet")

    def _reason(self, number: int) -> str:
        why, left = self._why_absent(number), self._backoff.left(number)
        return f"{why}; it is asked again in {left:.0f} s" if left else why

    def _say(self, number: int, why: str, text: str) -> None:
        """Tells the operator why a site is absent: once for each new reason, not at each greeting."""
        if self._why.get(number) != why:
            self._note(text)
        self._why[number] = why

    def _name(self, number: int) -> str:
        return self._terms.sites[number].name

    def _can_take(self, number: int, step: int) -> bool:
        return self._terms.trust != "secure" or (number in self._offers and self._offers[number].step == step)

    def _fits(self, offer: Offer) -> bool:
        """Returns whether an offer has the right lengths, and gives all sites the same round public key."""
        from dpfed.federation.secure.envelopes import KEY_BYTES, offer_lengths  # only secure sums need its imports

        public, each = offer_lengths(self._terms.trust_model)
        if len(offer.public) != public or len(offer.envelopes) != each * (len(self._terms.sites) - 1):
            return False
        starts = range(0, len(offer.envelopes), each)
        return all(offer.envelopes[at : at + KEY_BYTES] == offer.public[:KEY_BYTES] for at in starts)

    def _greeting(self, step: int) -> Packet:
        return sign(self._identity, self._terms.fingerprint, "hello", nonce=secrets.token_hex(16), step=step)
