"""The server's side of secure aggregation: adds masked vectors and takes away the masks that did not cancel.

See `dpfed.federation.secure.masking` for the sites' side and docs/secure-aggregation.md for the protocol.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpfed.errors import UserError
from dpfed.federation.secure.masks import StepKeys, add_mask, pair_sign, public_bytes
from dpfed.federation.secure.shares import SECRET_BYTES, combine, threshold

_TRIES = 200  # sets of shares that are tried for a secret


class Unmasking:
    """The sum of one step: `add` what arrives, `close`, ask the sites to reveal, then `total`.

    Args:
        sites: n, all sites of the run.
        tolerated: t, see `threshold`.
        context: fingerprint of the run's agreed terms.
        step: training step.
        public: `Offer.public` of each site of the step's roster, by number.
        size: P, length of the vectors.

    Raises:
        UserError: if the roster is too small, or a site's public values do not have 64 bytes.
    """

    def __init__(self, sites: int, tolerated: int, context: bytes, step: int, public: dict[int, bytes], size: int) -> None:
        self._needed = threshold(sites, tolerated)
        if len(public) < self._needed:
            raise UserError(f"step {step}: {_named(public)} made offers, at least {self._needed} sites are needed.")
        if wrong := [site for site, value in public.items() if len(value) != 2 * SECRET_BYTES]:
            raise UserError(f"step {step}: the public values of {_named(wrong)} do not have {2 * SECRET_BYTES} bytes.")
        self._keys = StepKeys(context, step)
        self._round_key = {site: value[:SECRET_BYTES] for site, value in public.items()}
        self._check = {site: value[SECRET_BYTES:] for site, value in public.items()}
        self._total = np.zeros(size, np.uint32)
        self._arrived: set[int] = set()
        self._closed = False

    def add(self, site: int, masked: np.ndarray) -> None:
        """Adds a site's masked vector.

        Args:
            site: its number.
            masked: ``(P,)`` uint32, from `Masking.mask`.

        Raises:
            UserError: if the site is not in the roster or was added before, the step is closed, or the vector does not fit.
        """
        step, size = self._keys.step, len(self._total)
        if site not in self._round_key or site in self._arrived or self._closed:
            reason = (
                "it arrived before" if site in self._arrived else "the step is closed" if self._closed else "it made no offer"
            )
            raise UserError(f"step {step}: the vector of site {site} was not added, because {reason}.")
        if masked.shape != (size,) or masked.dtype != np.uint32:
            raise UserError(f"step {step}: site {site} sent {masked.shape} {masked.dtype}, expected ({size},) uint32.")
        self._total += masked
        self._arrived.add(site)

    def close(self) -> frozenset[int]:
        """Ends the step's arrivals.

        Returns:
            The sites in the sum: what every site must be told in the request to reveal.

        Raises:
            UserError: if fewer than the threshold arrived: the sum can never be unmasked.
        """
        if len(self._arrived) < self._needed:
            raise UserError(
                f"step {self._keys.step}: {_named(self._arrived)} arrived, at least {self._needed} are needed for a sum."
            )
        self._closed = True
        return frozenset(self._arrived)

    def total(self, reveals: dict[int, dict[int, bytes]]) -> np.ndarray:
        """The sum over the sites that arrived.

        Args:
            reveals: what `Masking.reveal` returned, by the number of the site that revealed it; at least the threshold of
                them. May be tried again with more of them.

        Returns:
            ``(P,)`` uint32, for `Grid.decode`.

        Raises:
            UserError: if there are too few shares of a secret, or they do not give the secret that its site committed to.
        """
        if not self._closed:
            raise ValueError("close the step before it is unmasked")
        # Every secret is recovered and checked before the first mask is taken away.
        seeds = {site: self._seed(site, reveals) for site in sorted(self._arrived)}
        keys = {site: self._key(site, reveals) for site in sorted(self._round_key.keys() - self._arrived)}
        values = self._total.copy()
        for site, seed in seeds.items():
            add_mask(values, self._keys.self_mask(seed, site), -1)
        for gone, key in keys.items():
            for site in seeds:
                add_mask(values, self._keys.pair_mask(key, self._round_key[site], site, gone), -pair_sign(site, gone))
        return values

    def _seed(self, site: int, reveals: dict[int, dict[int, bytes]]) -> bytes:
        return self._secret(site, reveals, lambda secret: self._keys.self_check(secret, site) == self._check[site])

    def _key(self, site: int, reveals: dict[int, dict[int, bytes]]) -> X25519PrivateKey:
        def fits(secret: bytes) -> bool:
            return public_bytes(X25519PrivateKey.from_private_bytes(secret)) == self._round_key[site]

        return X25519PrivateKey.from_private_bytes(self._secret(site, reveals, fits))

    def _secret(self, site: int, reveals: dict[int, dict[int, bytes]], fits: Callable[[bytes], bool]) -> bytes:
        """Recovers a secret of a site; where a share is wrong, from others, as far as there are enough of them."""
        given = {giver: shares[site] for giver, shares in sorted(reveals.items()) if len(shares.get(site, b"")) == SECRET_BYTES}
        step = self._keys.step
        if len(given) < self._needed:
            raise UserError(
                f"step {step}: {_named(given)} revealed a share for site {site}, {self._needed} are needed: the sum stays "
                "masked."
            )
        for shares in itertools.islice(itertools.combinations(given.items(), self._needed), _TRIES):
            if fits(secret := combine(dict(shares))):
                return secret
        raise UserError(
            f"step {step}: the shares of {_named(given)} do not give the secret of site {site}: too many of them are wrong, or "
            f"site {site} gave out wrong ones."
        )


def _named(sites: Iterable[int]) -> str:
    numbers = sorted(sites)
    if not numbers:
        return "no site"
    return f"site {numbers[0]}" if len(numbers) == 1 else f"sites {', '.join(map(str, numbers))}"
