"""Shamir's scheme against another library, and what too few shares tell: nothing."""

import itertools
import os

import numpy as np
import pytest
from Crypto.Protocol.SecretSharing import Shamir

from dpfed.federation.secure import field
from dpfed.federation.secure.shares import combine, split

RNG = np.random.default_rng(1)
MODULUS = (1 << 128) | 0b10000111


def slowly(one: int, other: int) -> int:
    """The oracle: schoolbook multiplication, and division with remainder."""
    result = 0
    for bit in range(128):
        result ^= (one << bit) * (other >> bit & 1)
    for bit in range(result.bit_length() - 1, 127, -1):
        result ^= (MODULUS << (bit - 128)) * (result >> bit & 1)
    return result


def test_the_field_is_the_one_it_says():
    for _ in range(30):
        one, other = (int.from_bytes(os.urandom(16)) for _ in range(2))
        content, small = one.to_bytes(16), int(RNG.integers(0, 5000))
        elements = field.from_bytes(content)
        assert field.to_bytes(elements) == content
        assert field.product(one, other) == slowly(one, other)
        assert slowly(one, field.inverse(one)) == 1
        assert int.from_bytes(field.to_bytes(field.shifted(elements))) == slowly(one, 2)
        assert int.from_bytes(field.to_bytes(field.scaled(elements, np.array([small], np.uint64)))) == slowly(one, small)
        both = field.combined([one, other], np.stack([elements, field.from_bytes(other.to_bytes(16))]))
        assert int.from_bytes(field.to_bytes(both)) == slowly(one, one) ^ slowly(other, other)
    assert [field.inverse(1), field.product(0, 7)] == [1, 0]


@pytest.mark.parametrize(("needed", "sites"), [(1, 2), (2, 3), (3, 5), (4, 4)])
def test_another_library_gives_our_secrets_back_and_we_give_its(needed, sites):
    secrets = [os.urandom(32) for _ in range(3)]
    for secret, shares in zip(secrets, split(secrets, needed, sites), strict=True):
        for givers in itertools.combinations(range(sites), needed):
            halves = [Shamir.combine([(at + 1, shares[at][half : half + 16]) for at in givers], False) for half in (0, 16)]
            assert b"".join(halves) == combine({at: shares[at] for at in givers}) == secret
    if needed > 1:  # the other library cannot share a secret with everybody
        theirs = [Shamir.split(needed, sites, secrets[0][half : half + 16], False) for half in (0, 16)]
        shares = {at: theirs[0][at][1] + theirs[1][at][1] for at in range(sites)}
        for givers in itertools.combinations(range(sites), needed):
            assert combine({at: shares[at] for at in givers}) == secrets[0]


def test_a_share_less_than_the_threshold_tells_nothing():
    secret = bytes(range(32))
    (shares,) = split([secret], 3, 5)
    for chosen in itertools.combinations(range(5), 2):
        two = {site: shares[site] for site in chosen}
        assert combine(two) != secret
        # every secret is possible: whatever third share one imagines, another secret comes out
        third = next(site for site in range(5) if site not in two)
        assert len({combine(two | {third: bytes([guess]) * 32}) for guess in range(8)}) == 8


def test_shares_are_drawn_afresh():
    assert len({split([bytes(32)], 2, 3)[0][0] for _ in range(20)}) == 20
