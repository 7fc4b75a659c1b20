"""Shares of 32-byte secrets: any `needed` shares recover the secret, fewer reveal nothing about it.

Shamir, "How to share a secret" (Communications of the ACM, 1979). A secret is a number below a prime. It is the
constant coefficient of a polynomial whose other coefficients are drawn uniformly. The share of the site with number i is the
polynomial's value at i + 1.
"""

from __future__ import annotations

import functools
import secrets as system
from collections.abc import Iterator

SECRET_BYTES = 32
PRIME = 2**256 - 189  # the largest of 256 bits: 189 in 2^256 secrets are not below it


def split(secrets: list[bytes], needed: int, sites: int) -> list[list[bytes]]:
    """Splits secrets into shares.

    Args:
        secrets: Secrets of 32 bytes each, drawn uniformly.
        needed: Number of shares that recover a secret.
        sites: Number of shares to make of each secret.

    Returns:
        The shares of each secret: 32 bytes for each site, in the order of the site numbers.

    Raises:
        ValueError: If a secret is not below the prime.
    """
    return [list(_shares(int.from_bytes(secret, "big"), needed, sites)) for secret in secrets]


def _shares(secret: int, needed: int, sites: int) -> Iterator[bytes]:
    if secret >= PRIME:
        raise ValueError("a secret is not below the prime, so it was not drawn at random")
    coefficients = [*(system.randbelow(PRIME) for _ in range(needed - 1)), secret]
    for point in range(1, sites + 1):
        value = 0
        for coefficient in coefficients:  # Horner's scheme; the secret is the constant
            value = (value * point + coefficient) % PRIME
        yield value.to_bytes(SECRET_BYTES, "big")


def recovered(givers: tuple[int, ...], shares: list[bytes]) -> list[bytes]:
    """Recovers secrets from their shares; wrong shares give wrong bytes, which the caller must check.

    Args:
        givers: Numbers of the sites that gave shares, exactly as many as `needed` in `split`.
        shares: For each giver, in the same order, the giver's shares of all secrets, concatenated.

    Returns:
        The secrets, 32 bytes each.
    """
    weights = _weights(givers)
    secrets = []
    for at in range(0, len(shares[0]), SECRET_BYTES):
        values = (int.from_bytes(share[at : at + SECRET_BYTES], "big") for share in shares)
        total = sum(weight * value for weight, value in zip(weights, values, strict=True))
        secrets.append((total % PRIME).to_bytes(SECRET_BYTES, "big"))
    return secrets


@functools.lru_cache(maxsize=8)  # mostly the same sites come in every step
def _weights(givers: tuple[int, ...]) -> tuple[int, ...]:
    """Returns Lagrange's weights at 0, one for each giver.

    A giver's weight is the product of the other givers' points, divided by the product of their differences from the giver's
    point.
    """
    weights = []
    for giver in givers:
        above, below = 1, 1
        for other in givers:
            if other != giver:
                above, below = above * (other + 1) % PRIME, below * (other - giver) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
