"""The hash of a sum against Python's whole numbers, and what its proof counts."""

import functools
import hashlib
import hmac
import itertools

import numpy as np
import pytest
import torch

from dpfed.privacy import universal_hash
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.universal_hash import KEYS, PRIME, ROW, UniversalHash

HASH = UniversalHash(Randomness.from_seed(3))


def vector(size, kind=torch.int64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if kind == torch.float32:
        return torch.randn(size, generator=generator) * 1e3
    info = torch.iinfo(kind)
    return torch.randint(info.min, info.max, (size,), generator=generator, dtype=kind)


def oracle(values, keys):
    """Slow: each word by itself, in Python's whole numbers."""
    raw = values.numpy().tobytes()
    words = [int.from_bytes(raw[at : at + 2], "little", signed=True) for at in range(0, len(raw), 2)]
    rows = [words[at : at + ROW] for at in range(0, len(words), ROW)]
    return [[sum(int(k) * w for k, w in zip(key, row, strict=False)) % PRIME for key in keys] for row in rows]


@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
@pytest.mark.parametrize("size", [1, 5, ROW // 4, ROW // 2 + 1, 3 * ROW // 2 + 7, 5 * ROW])
def test_residues_are_those_of_whole_numbers(kind, size):
    values = vector(size, kind)
    assert HASH.residues(values).tolist() == oracle(values, HASH._keys)


@pytest.mark.parametrize("word", [-(2**15), 2**15 - 1])
def test_the_largest_sums_are_exact(word):
    """Words and keys as large as they can be: float64 holds every partial sum."""
    hashed = UniversalHash(Randomness.from_seed(3))
    hashed._keys = np.full((KEYS, ROW), PRIME - 1)
    values = torch.full((2 * ROW,), word, dtype=torch.int16)
    assert ROW * (PRIME - 1) * 2**15 < 2**53
    assert hashed.residues(values).tolist() == [[ROW * (PRIME - 1) * word % PRIME] * KEYS] * 2


def test_p_is_the_prime_that_the_proof_counts_with():
    assert all(PRIME % d for d in range(2, int(PRIME**0.5) + 1)) and 2**16 < PRIME < 2**23
    assert PRIME**KEYS > 2**114


def test_keys_are_uniform_and_follow_from_the_secret():
    keys = HASH._keys
    assert keys.shape == (KEYS, ROW) and keys.min() >= 0 and keys.max() < PRIME
    counts = np.bincount(keys.ravel() * 64 // PRIME, minlength=64)
    assert ((counts - keys.size / 64) ** 2 / (keys.size / 64)).sum() < 63 + 6 * np.sqrt(2 * 63)  # chi-squared
    assert np.array_equal(keys, UniversalHash(Randomness.from_seed(3))._keys)
    assert (keys == UniversalHash(Randomness.from_seed(4))._keys).mean() < 1e-3
    assert len({row.tobytes() for row in keys}) == KEYS  # five keys, and not one five times


def test_words_that_are_no_residue_are_drawn_again():
    """23 bits have 15 values too many: each of them would make others likelier."""
    given = [np.array([PRIME, 3, PRIME - 1, 2**23 - 1, 5, *[9] * 61], "<u4").tobytes()] * 2
    assert list(universal_hash._uniform(lambda count: given.pop(0), 2))[:2] == [3, PRIME - 1]


def test_a_pair_collides_for_one_key_in_p(monkeypatch):
    """With a prime so small that it can be counted: for every pair, and for all keys, exactly p^-1 of them collide."""
    hashed = UniversalHash(Randomness.from_seed(0))
    monkeypatch.setattr(universal_hash, "PRIME", 7)
    one, other = (torch.zeros(ROW, dtype=torch.int16) for _ in range(2))
    for place, word in ((3, 2), (9, -3), (10, 6)):
        other[place] = word
    for value, rest in itertools.product(range(7), repeat=2):  # any other numbers of the key
        equal = 0
        for key in range(7):
            hashed._keys = np.zeros((KEYS, ROW), np.int64)
            hashed._keys[:, 3], hashed._keys[:, 9], hashed._keys[:, 10] = key, value, rest
            hashed._tables = {}
            equal += torch.equal(hashed.residues(one)[0, :1], hashed.residues(other)[0, :1])
        assert equal == 1


@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_each_bit_type_and_length_changes_the_digest(kind):
    values = vector(ROW // 2 + 3, kind)
    seen = {HASH.digest(values), HASH.digest(values[:-1]), HASH.digest(torch.cat([values, values.new_zeros(1)]))}
    seen |= {HASH.digest(values.view(torch.int32 if kind == torch.float32 else torch.float64))}
    raw = values.numpy().view(np.uint8)
    for place in (0, 7, 8, len(raw) // 2, len(raw) - 1):
        for bit in range(8):
            raw[place] ^= 1 << bit
            seen.add(HASH.digest(values))
            raw[place] ^= 1 << bit
    assert len(seen) == 4 + 40 and all(len(digest) == 32 for digest in seen)
    swapped = values.clone()
    swapped[[0, -1]] = values[[-1, 0]]
    assert HASH.digest(swapped) not in seen


def test_a_digest_is_a_keyed_hash_of_the_residues():
    """What a ledger holds tells nothing of the keys, although who reads it may know the sum."""
    values = vector(40)
    residues = HASH.residues(values).numpy().astype("<i4").tobytes()
    secret = Randomness.from_seed(3).key("digest of residues")
    assert HASH.digest(values) == hmac.new(secret, b"torch.int64/40/" + residues, hashlib.sha256).hexdigest()[:32]


@pytest.mark.parametrize("size", [2, ROW, ROW + 10, 3 * ROW])
def test_the_kernel_comes_to_the_same_residues(size):
    kernel = pytest.importorskip("dpfed.privacy.residues_kernel")
    words = vector(size, torch.int16)
    keys = torch.from_numpy(HASH._keys).int()
    assert torch.equal(kernel.residues(words, keys, PRIME), HASH.residues(words))


def test_a_kernel_that_comes_to_other_residues_is_not_used(monkeypatch):
    kernel = pytest.importorskip("dpfed.privacy.residues_kernel")
    assert kernel.works_on(torch.device("cpu"), ROW, PRIME)
    kernel.works_on.cache_clear()
    real = kernel.residues
    monkeypatch.setattr(kernel, "residues", lambda *given: real(*given) + 1)
    with pytest.warns(UserWarning, match="its residues differ"):
        assert not kernel.works_on(torch.device("cpu"), ROW, PRIME)
    kernel.works_on.cache_clear()


@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_a_digest_is_the_same_with_and_without_the_kernel(monkeypatch, kind):
    kernel = pytest.importorskip("dpfed.privacy.residues_kernel")
    values = vector(ROW // 2 + 5, kind)
    expected = HASH.digest(values)
    monkeypatch.setattr(universal_hash, "_kernel", lambda device: functools.partial(kernel.residues, prime=PRIME))
    assert UniversalHash(Randomness.from_seed(3)).digest(values) == expected
