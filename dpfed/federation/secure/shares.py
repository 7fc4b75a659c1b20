"""Shamir shares of 32-byte secrets: any `needed` of them give the secret, fewer tell nothing about it.

A secret is two elements of GF(2^128), each the value at 0 of a polynomial; a site's share holds the values at the site's number
plus 1. What a set of givers must weigh its shares with depends on the set only, so the weights are computed once and then
serve for all secrets (`Recovery`).
"""

from __future__ import annotations

import functools
import os

import numpy as np

from dpfed.federation.secure import field

SECRET_BYTES = 2 * field.BYTES


def split(secrets: list[bytes], needed: int, sites: int) -> list[list[bytes]]:
    """Shares secrets.

    Args:
        secrets: 32 bytes each.
        needed: shares that give one back.
        sites: shares to make of each.

    Returns:
        For each secret a share of 32 bytes for each site, in the order of their numbers.
    """
    halves = field.from_bytes(b"".join(secrets))
    drawn = field.from_bytes(os.urandom((needed - 1) * len(halves) * field.BYTES)).reshape(needed - 1, len(halves), 2)
    points = np.arange(1, sites + 1, dtype=np.uint64)[:, None]
    values = np.zeros((sites, len(halves), 2), np.uint64)
    for coefficients in (*drawn, halves):  # Horner's scheme; the secret is the constant
        values = field.scaled(values, points) ^ coefficients
    return [[field.to_bytes(values[site, at : at + 2]) for site in range(sites)] for at in range(0, len(halves), 2)]


class Recovery:
    """Gives secrets back from the shares of a set of givers; wrong shares give wrong bytes, which the caller must check.

    Args:
        givers: exactly as many sites as `split` needed.
    """

    def __init__(self, givers: tuple[int, ...]) -> None:
        self.givers = givers
        self._weights = list(_weights(givers))

    def secrets(self, shares: list[bytes]) -> list[bytes]:
        """The secrets behind some shares.

        Args:
            shares: for each giver, in their order, its shares of all secrets, one after the other.

        Returns:
            32 bytes for each secret.
        """
        elements = np.stack([field.from_bytes(own) for own in shares])
        content = field.to_bytes(field.combined(self._weights, elements))
        return [content[at : at + SECRET_BYTES] for at in range(0, len(content), SECRET_BYTES)]


def combine(shares: dict[int, bytes]) -> bytes:
    """One secret from exactly as many shares as `split` needed, by the number of the site that holds them."""
    return Recovery(tuple(shares)).secrets(list(shares.values()))[0]


@functools.lru_cache(maxsize=8)  # mostly the same sites come in every step
def _weights(givers: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights at 0: the product of the other points over their differences from the giver's own."""
    points = np.array(givers, np.uint64) + np.uint64(1)
    below = np.zeros((len(points), 2), np.uint64)
    below[:, 0] = points  # the product of all points, over the giver's own, makes that of the others
    whole = 1
    for point in points:
        differences = points ^ point
        below = field.scaled(below, np.where(differences, differences, np.uint64(1)))
        whole = field.product(whole, int(point))
    return tuple(field.product(whole, field.inverse(int(low) | int(high) << 64)) for low, high in below.tolist())
