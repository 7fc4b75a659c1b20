"""Shamir's scheme against Newton's interpolation, and what too few shares tell: nothing."""

import itertools
import os

import numpy as np
import pytest
import scipy.stats

from dpfed.federation.secure.shares import PRIME, recovered, split
from tests.federation.secure.protocol import combine


def interpolated(shares: dict[int, bytes]) -> bytes:
    """The oracle: Newton's divided differences, evaluated at 0."""
    points = [site + 1 for site in shares]
    table = [int.from_bytes(share, "big") for share in shares.values()]
    for order in range(1, len(points)):
        for at in range(len(points) - 1, order - 1, -1):
            table[at] = (table[at] - table[at - 1]) * pow(points[at] - points[at - order], -1, PRIME) % PRIME
    value = 0
    for coefficient, point in zip(reversed(table), reversed(points), strict=True):
        value = (value * -point + coefficient) % PRIME
    return value.to_bytes(32, "big")


def test_the_prime_is_one():
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7)) and PRIME.bit_length() == 256


@pytest.mark.parametrize(("needed", "sites"), [(1, 2), (2, 3), (3, 5), (4, 4)])
def test_any_shares_that_are_enough_give_the_secrets_back(needed, sites):
    secrets = [os.urandom(32) for _ in range(3)]
    dealt = split(secrets, needed, sites)
    for givers in itertools.combinations(range(sites), needed):
        assert recovered(givers, [b"".join(shares[at] for shares in dealt) for at in givers]) == secrets
        for secret, shares in zip(secrets, dealt, strict=True):
            assert interpolated({at: shares[at] for at in givers}) == secret


def test_a_share_less_than_the_threshold_tells_nothing():
    secret = bytes(range(32))
    (shares,) = split([secret], 3, 5)
    for chosen in itertools.combinations(range(5), 2):
        two = {site: shares[site] for site in chosen}
        assert combine(two) != secret
        # every secret is possible: whatever third share one imagines, another secret comes out
        third = next(site for site in range(5) if site not in two)
        assert len({combine(two | {third: bytes([guess]) * 32}) for guess in range(8)}) == 8


def test_shares_are_drawn_afresh_and_uniform_whatever_the_secret():
    dealt = [split([bytes(32)], 2, 3)[0][0] for _ in range(4000)]
    assert len(set(dealt)) == len(dealt)
    for byte in (0, 31):
        assert scipy.stats.chisquare(np.bincount([share[byte] for share in dealt], minlength=256)).pvalue > 1e-7


def test_a_secret_that_the_prime_has_no_room_for_is_refused():
    with pytest.raises(ValueError, match="not below the prime"):
        split([b"\xff" * 32], 2, 3)
