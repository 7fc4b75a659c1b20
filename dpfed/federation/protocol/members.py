"""Which sites are there, where, and what they have offered for the step to come."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from dpfed.federation.protocol.answers import Hello, Offer, Rejected, read
from dpfed.federation.protocol.identity import Identity
from dpfed.federation.protocol.messages import alleged, sign
from dpfed.federation.protocol.packets import Packet
from dpfed.federation.protocol.terms import Terms


class Channel(Protocol):
    """Carries packets to sites and back."""

    def sites(self) -> list[str]:
        """The addresses that can be reached now."""

    def exchange(self, packets: dict[str, Packet], seconds: float) -> Iterator[tuple[str, Packet | None]]:
        """Sends a packet to each address and yields what comes back: all at once, until all have answered or time is up.

        Args:
            packets: by address.
            seconds: to wait at most.

        Yields:
            An address and its reply; ``None``: it failed.
        """


class Members:
    """The sites that take part now.

    Args:
        terms: of the federation.
        identity: the coordinator's.
        frozen: digest of the weights that are not trained.
        note: told what the operator should see.

    Attributes:
        ahead: latest step of sites that took part in later steps than the one to come.
    """

    def __init__(self, terms: Terms, identity: Identity, frozen: str, note: Callable[[str], None]) -> None:
        self._terms, self._identity, self._frozen, self._note = terms, identity, frozen, note
        self._addresses: dict[int, str] = {}
        self._offers: dict[int, Offer] = {}
        self.ahead: dict[int, int] = {}

    def present(self, step: int) -> dict[int, str]:
        """Addresses of the sites that can take a step, by number."""
        return {number: address for number, address in sorted(self._addresses.items()) if self._can_take(number, step)}

    def offers(self, step: int) -> dict[int, Offer]:
        """What they offered for it; empty where nothing is masked."""
        return {number: self._offers[number] for number in self.present(step) if number in self._offers}

    def keep(self, number: int, offer: Offer | None, step: int) -> None:
        """A site stays, with what it offers for the next step."""
        self._offers.pop(number, None)
        if offer is not None and offer.step == step and self._fits(number, offer):
            self._offers[number] = offer

    def lose(self, number: int) -> None:
        """A site did not answer rightly: it must be greeted again."""
        self._addresses.pop(number, None)
        self._offers.pop(number, None)

    def greetings(self, addresses: Iterable[str], step: int) -> dict[str, Packet]:
        """Greetings to those of some addresses whose sites cannot take a step yet."""
        known = set(self.present(step).values())
        return {address: self._greeting(step) for address in addresses if address not in known}

    def welcome(self, reply: Packet | None, address: str, greeting: Packet, step: int) -> None:
        """Takes a site in if it answered its greeting rightly."""
        number = alleged(reply).get("site") if reply is not None else None
        if type(number) is not int or not 0 <= number < len(self._terms.sites):
            return
        site = self._terms.sites[number]
        try:
            hello = read(reply, Hello, number, site.signing_key, self._terms.fingerprint)
            if hello.nonce != alleged(greeting)["nonce"]:
                raise Rejected("an answer to another question")
            if hello.frozen != self._frozen:
                raise Rejected("its weights that are not trained differ from the coordinator's")
        except Rejected as rejected:
            self._note(f"{site.name} is not taken in: {rejected}")
            return
        self.ahead.pop(number, None)
        if hello.last >= step:
            self.ahead[number] = hello.last
            return
        self._addresses[number] = address
        self.keep(number, hello.offer, step)

    def _can_take(self, number: int, step: int) -> bool:
        return self._terms.trust != "secure" or (number in self._offers and self._offers[number].step == step)

    def _fits(self, number: int, offer: Offer) -> bool:
        return set(offer.ciphertexts) == set(range(len(self._terms.sites))) - {number}

    def _greeting(self, step: int) -> Packet:
        return sign(self._identity, self._terms.fingerprint, "hello", nonce=secrets.token_hex(16), step=step)
