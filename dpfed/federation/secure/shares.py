"""Shamir shares of 32-byte secrets: any `threshold` of them give the secret, fewer tell nothing about it."""

from __future__ import annotations

from Crypto.Protocol.SecretSharing import Shamir

from dpfed.errors import UserError

SECRET_BYTES = 32
_HALF = 16  # bytes of the field GF(2^128): a secret is shared as two halves


def threshold(sites: int, tolerated: int) -> int:
    """How many sites must arrive, and how many shares give a secret.

    Args:
        sites: n, all sites of the run.
        tolerated: t, sites that may drop out or work together with the server.

    Returns:
        n - t.

    Raises:
        UserError: if there are fewer than two sites, or 2t >= n: t sites that collude would hold enough shares themselves.

    >>> threshold(10, 3)
    7
    """
    if sites < 2:
        raise UserError(f"secure aggregation hides a site among others: it needs at least 2 sites, got {sites}.")
    if tolerated < 0 or 2 * tolerated >= sites:
        raise UserError(
            f"{tolerated} of {sites} sites cannot be tolerated to drop or collude: fewer than half can, "
            f"here 0 to {(sites - 1) // 2}."
        )
    return sites - tolerated


def split(secret: bytes, needed: int, sites: int) -> list[bytes]:
    """Shares a secret.

    Args:
        secret: 32 bytes.
        needed: shares that give it back.
        sites: shares to make.

    Returns:
        One share of 32 bytes for each site, in the order of their numbers.
    """
    halves = (Shamir.split(needed, sites, part, False) for part in (secret[:_HALF], secret[_HALF:]))
    return [first + second for (_, first), (_, second) in zip(*halves, strict=True)]


def combine(shares: dict[int, bytes]) -> bytes:
    """Gives a secret back; wrong shares give wrong bytes, which the caller must check.

    Args:
        shares: exactly as many as `split` needed, 32 bytes each, by the number of the site that holds them.

    Returns:
        32 bytes.
    """
    # Shamir evaluates its polynomial at 1, 2, ...: the secret itself stands at 0.
    first = Shamir.combine([(site + 1, share[:_HALF]) for site, share in shares.items()], False)
    return first + Shamir.combine([(site + 1, share[_HALF:]) for site, share in shares.items()], False)
