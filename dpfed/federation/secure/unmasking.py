"""The server's side of secure aggregation: adds masked vectors and removes the masks that did not cancel.

See `dpfed.federation.secure.masking` for the sites' side and docs/secure-aggregation.md for the protocol.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpfed.errors import UserError
from dpfed.federation.secure.envelopes import KEY_BYTES, View, offer_lengths
from dpfed.federation.secure.masks import StepKeys, add_mask, pair_sign, public_bytes
from dpfed.federation.secure.shares import SECRET_BYTES, recovered
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.identity import is_signed
from dpfed.protocol.trust import Trust

TRIES = 40  # combinations of revealing sites that are tried at most; each takes about a second with 1,000 sites


class Unmasking:
    """Adds up the masked vectors of one step, and unmasks their sum.

    The caller calls `add` for each vector that arrives, then `close`, and at last `total`. If sites may drop out, the caller
    asks the sites for their shares before `total`; if a vector of the roster is missing, the caller first asks the sites to
    confirm the arrivals (`vote`).

    Args:
        sites: Cards with the public keys of all sites, in the order of the site numbers.
        trust: Trust mode, with the numbers of sites that may drop out or collude.
        context: Fingerprint of the run's agreed terms.
        step: Training step.
        public: `Offer.public` of each site in the step's roster, by site number.
        size: Length of the vectors, P.

    Attributes:
        rosters: Signature of the roster by each site whose vector arrived, by site number.
        votes: Signatures of the arrivals, by site number.

    Raises:
        UserError: If the roster is too small, or a site's public values have a wrong length.
    """

    def __init__(
        self, sites: Sequence[SiteCard], trust: Trust, context: bytes, step: int, public: dict[int, bytes], size: int
    ) -> None:
        if len(public) < trust.least:
            raise UserError(f"step {step}: {_named(public)} made offers, {trust.least} sites are needed. [share-few-offers]")
        length, _ = offer_lengths(trust)
        if wrong := [site for site, value in public.items() if len(value) != length]:
            raise UserError(
                f"step {step}: the offers of {_named(wrong)} (their keys for masking) do not have {length} public bytes. "
                "[share-offer-size]"
            )
        self._sites, self._trust, self._keys = sites, trust, StepKeys(context, step)
        self._round_key = {site: value[:KEY_BYTES] for site, value in sorted(public.items())}
        self._check = {site: value[KEY_BYTES:] for site, value in public.items()}
        self._view = View(self._keys, self._round_key)
        self._total = np.zeros(size, np.uint32)
        self._arrived: set[int] = set()
        self._closed = False
        self.rosters: dict[int, bytes] = {}
        self.votes: dict[int, bytes] = {}

    def add(self, site: int, masked: np.ndarray, signature: bytes = b"") -> None:
        """Adds a site's masked vector.

        Args:
            site: Number of the site.
            masked: Vector from `Masking.mask`, shape ``(P,)``, uint32.
            signature: Signature of the roster, from `Masking.signed_roster`; needed if sites may drop out; default: none.

        Raises:
            UserError: If the site is not in the roster or was added before, the step is closed, or the vector or the signature
                does not fit.
        """
        step, size = self._keys.step, len(self._total)
        if site not in self._round_key:
            raise UserError(f"step {step}: site {site} made no offer, so its vector is not added. [share-not-in-roster]")
        if site in self._arrived:
            raise UserError(f"step {step}: a second vector of site {site} arrived, and is not added. [share-vector-twice]")
        if self._closed:
            raise UserError(f"step {step}: the vector of site {site} arrived after the step was closed. [share-vector-late]")
        if masked.shape != (size,) or masked.dtype != np.uint32:
            raise UserError(f"step {step}: site {site} sent {masked.shape} {masked.dtype}, not ({size},) uint32. [share-shape]")
        if self._trust.drops:
            if not is_signed(self._view.roster(), signature, self._sites[site].signing_key):
                raise UserError(f"step {step}: site {site} has not signed the step's roster. [share-roster-unsigned]")
            self.rosters[site] = signature
        self._total += masked
        self._arrived.add(site)

    def close(self) -> frozenset[int]:
        """Ends the arrivals of the step: no further vector is added.

        Returns:
            The numbers of the sites in the sum. The request for shares (`Masking.reveal`) must name all of them to every site.

        Raises:
            UserError: If fewer vectors arrived than the trust mode needs: the sum can never be unmasked.
        """
        if len(self._arrived) < self._trust.least:
            raise UserError(
                f"step {self._keys.step}: vectors arrived from {_named(self._arrived)}; {self._trust.least} sites are needed. "
                "[share-few-arrived]"
            )
        self._closed = True
        return frozenset(self._arrived)

    @property
    def unanimous(self) -> bool:
        """Whether the vectors of the whole roster arrived, so that the sites need not confirm the arrivals to each other."""
        return self._arrived == self._view.members

    def vote(self, site: int, signature: bytes) -> bool:
        """Keeps a site's signature of the list of sites whose vectors arrived, if the signature is valid.

        Returns:
            ``True`` if the signature is valid.
        """
        valid = is_signed(self._view.arrival_log(frozenset(self._arrived)), signature, self._sites[site].signing_key)
        if valid:
            self.votes[site] = signature
        return valid

    @property
    def confirmed(self) -> bool:
        """Whether the vectors of the whole roster arrived, or enough sites have signed the arrivals."""
        return self.unanimous or len(self.votes) >= self._trust.least

    def total(self, reveals: dict[int, bytes], tries: int = TRIES) -> np.ndarray:
        """Returns the unmasked sum of the vectors that arrived.

        Args:
            reveals: Results of `Masking.reveal`, by the number of the site that revealed them, from at least as many sites as
                the trust mode needs. A failed call may be repeated with further results. Empty if no site may drop out: all
                masks have then cancelled.
            tries: Largest number of combinations of revealing sites from which the secrets are reconstructed. More than one is
                needed only if some sites revealed wrong shares. Default: 40.

        Returns:
            The sum, shape ``(P,)``, uint32, for `Grid.decode`.

        Raises:
            UserError: If there are too few shares, or the secrets that follow from them are not those to which the sites
                committed.
            ValueError: If the step is not closed.
        """
        if not self._closed:
            raise ValueError("close the step before it is unmasked")
        values = self._total.copy()
        if not self._trust.drops:
            return values
        secrets = self._secrets(reveals, tries)  # all secrets are recovered and checked before the first mask is removed
        for site in sorted(self._arrived):
            add_mask(values, self._keys.self_mask(secrets[site], site), -1)
        for gone in self._view.members - self._arrived:
            key = X25519PrivateKey.from_private_bytes(secrets[gone])
            for site in self._trust.partners(gone) & self._arrived:
                add_mask(values, self._keys.pair_mask(key, self._round_key[site], site, gone), -pair_sign(site, gone))
        return values

    def _secrets(self, reveals: dict[int, bytes], tries: int) -> dict[int, bytes]:
        """Recovers the seeds of the sites whose vectors arrived and the round keys of the others, by site number.

        Raises:
            UserError: If there are too few shares, or too many wrong ones.
        """
        members, step = list(self._round_key), self._keys.step
        given = {giver: shares for giver, shares in sorted(reveals.items()) if len(shares) == SECRET_BYTES * len(members)}
        if len(given) < self._trust.least:
            raise UserError(
                f"step {step}: {_named(given)} gave shares, {self._trust.least} sites are needed: the sum stays masked. "
                "[share-few]"
            )
        checked: dict[int, bytes] = {}
        for givers in itertools.islice(_sets(list(given), self._trust.least), tries):
            secrets = recovered(givers, [given[giver] for giver in givers])
            checked |= {
                site: secret
                for site, secret in zip(members, secrets, strict=True)
                if site not in checked and self._fits(site, secret)
            }
            if len(checked) == len(members):
                return checked
        lost = _named(site for site in members if site not in checked)
        raise UserError(
            f"step {step}: the shares of {_named(given)} do not give the secrets of {lost}: too many of these shares are "
            f"wrong, or {lost} gave wrong shares to the others. [share-wrong]"
        )

    def _fits(self, site: int, secret: bytes) -> bool:
        """Returns whether a recovered secret is the one to which its site committed in its offer."""
        if site in self._arrived:
            return self._keys.self_check(secret, site) == self._check[site]
        return public_bytes(X25519PrivateKey.from_private_bytes(secret)) == self._round_key[site]


def _sets(givers: list[int], needed: int) -> Iterator[tuple[int, ...]]:
    """Yields sets of givers, the sites that revealed shares, in an order that soon leaves out a site that gives wrong shares.

    If there are few possible sets, the function yields all of them. Otherwise it first yields sets that each leave out one
    block of neighbouring sites, and then random sets, without end.
    """
    if math.comb(len(givers), needed) <= TRIES:
        yield from itertools.combinations(givers, needed)
        return
    spare = len(givers) - needed
    for end in range(len(givers), 0, -spare):
        start = max(0, end - spare)
        yield tuple(givers[:start] + givers[start + spare :])
    draws = np.random.default_rng(0)  # not secret: only the order of the tries
    while True:
        yield tuple(sorted(draws.choice(givers, needed, replace=False).tolist()))


def _named(sites: Iterable[int]) -> str:
    numbers = sorted(sites)
    if not numbers:
        return "no site"
    return f"site {numbers[0]}" if len(numbers) == 1 else f"sites {', '.join(map(str, numbers))}"
