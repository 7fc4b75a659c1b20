"""Sites and a server of secure sums that relays between them, without a network."""

from __future__ import annotations

import numpy as np

from dpfed.federation.secure.masking import Masking
from dpfed.federation.secure.shares import recovered
from dpfed.federation.secure.unmasking import Unmasking
from dpfed.protocol.identity import Identity
from dpfed.protocol.trust import Trust

TERMS = b"fingerprint of the terms"
SIZE = 50
RNG = np.random.default_rng(0)


class Federation:
    """n sites, of which some may drop out, and what a server does with them."""

    def __init__(self, sites: int, drops: int, colluders: int = 0) -> None:
        self.identities = [Identity.fresh() for _ in range(sites)]
        self.sites, self.parties = sites, Trust("secure", sites, drops, colluders)
        self.masking = [self.site(number) for number in range(sites)]

    def site(self, number: int, context: bytes = TERMS, identities: list[Identity] | None = None) -> Masking:
        """A site that was just started."""
        identities = identities or self.identities
        return Masking(number, identities[number], identities, self.parties, context)

    def offers(self, step: int, roster=None) -> dict:
        return {site: self.masking[site].offer(step) for site in (range(self.sites) if roster is None else roster)}

    @staticmethod
    def offers_to(site: int, offers: dict) -> dict[int, bytes]:
        """What a site is handed of some offers."""
        return {sender: offer.envelopes[site] for sender, offer in offers.items() if sender != site}

    def mask(self, site: int, step: int, values: np.ndarray, offers: dict) -> np.ndarray:
        masking = self.masking[site]
        return masking.mask(masking.open(step, self.offers_to(site, offers)), values)

    def signature(self, site: int, step: int) -> bytes:
        return self.masking[site].signed_roster(step) if self.parties.drops else b""

    def server(self, step: int, offers: dict, size: int = SIZE) -> Unmasking:
        public = {site: offer.public for site, offer in offers.items()}
        return Unmasking(self.identities, self.parties, TERMS, step, public, size)

    def masked_step(self, step: int, values: np.ndarray, roster=None, arriving=None) -> tuple[Unmasking, dict]:
        """Up to the end of the arrivals: the server, and every masked vector."""
        offers = self.offers(step, roster)
        masked = {site: self.mask(site, step, values[site], offers) for site in offers}
        server = self.server(step, offers, values.shape[1])
        for site in masked if arriving is None else arriving:
            server.add(site, masked[site], self.signature(site, step))
        return server, masked

    def votes(self, server: Unmasking, step: int, arrived, givers=None) -> None:
        """Has sites confirm who arrived, where that must be."""
        for site in () if server.unanimous else arrived if givers is None else givers:
            assert server.vote(site, self.masking[site].confirm(step, arrived))

    def reveals(self, server: Unmasking, step: int, arrived, givers=None) -> dict[int, bytes]:
        """What sites reveal, once they have confirmed what they must."""
        givers = arrived if givers is None else givers
        self.votes(server, step, arrived, givers)
        rosters, votes = server.rosters, server.votes
        return {site: self.masking[site].reveal(step, arrived, rosters, votes) for site in givers}

    def total(self, server: Unmasking, step: int) -> np.ndarray:
        """The rest of a step in which nobody else is lost."""
        arrived = server.close()
        return server.total(self.reveals(server, step, arrived) if self.parties.drops else {})


def vectors(sites: int, size: int = SIZE) -> np.ndarray:
    return RNG.integers(0, 2**32, size=(sites, size), dtype=np.uint32)


def plain_sum(values: np.ndarray, sites) -> list[int]:
    """The oracle: Python's integers."""
    return [sum(int(values[site, at]) for site in sites) % 2**32 for at in range(values.shape[1])]


def combine(shares: dict[int, bytes]) -> bytes:
    """One secret from exactly as many shares as `split` needed, by the number of the site that holds them."""
    return recovered(tuple(shares), list(shares.values()))[0]
