"""The secret draws: right distribution, independent, stateless, a function of each record alone."""

import hashlib

import numpy as np
import pytest
import scipy.stats
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpfed.privacy.randomness import Randomness

KEYS = np.random.default_rng(0).integers(0, 2**64, size=20_000, dtype=np.uint64)


def normals(count=200_000, scale=1.0, dtype=torch.float32, seed=0, **which):
    out = torch.zeros(count, dtype=dtype)
    Randomness.from_seed(seed).add_normal_(out, scale, "noise", **{"step": 0, **which})
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_are_standard_normal(dtype):
    assert scipy.stats.kstest(normals(dtype=dtype).double().numpy(), "norm").pvalue > 1e-4


def test_the_scale_is_the_standard_deviation_two_sided():
    # 200,000 draws: the sample deviation lies within 1% of the truth except with probability 1e-10
    assert 0.99 < normals(scale=3.7).std().item() / 3.7 < 1.01


def test_noise_is_added_to_what_is_there():
    out = torch.full((5,), 10.0)
    Randomness.from_seed(0).add_normal_(out, 1.0, "noise", 0)
    assert torch.allclose(out, 10 + normals(5))


def test_a_draw_follows_from_its_labels_alone():
    assert torch.equal(normals(1000), normals(1000))
    assert torch.equal(normals(1_500_000)[:1000], normals(1_500_000, step=0)[:1000])


@pytest.mark.parametrize("other", [{"step": 1}, {"rank": 1}, {"context": "x"}, {"seed": 1}])
def test_other_labels_give_independent_noise(other):
    # correlation of 200,000 independent pairs is below 0.01 except with probability 1e-5
    assert abs(np.corrcoef(normals().numpy(), normals(**other).numpy())[0, 1]) < 0.01


def by_hand(seed, scale, count, purpose, step, rank=0, context=""):
    """The generator, written down independently: BLAKE2b of the labels, AES-256 in counter mode, Box and Muller."""
    master = hashlib.blake2b(f"dpfed seed {seed}".encode(), digest_size=32).digest()
    key = hashlib.blake2b(f"{purpose}/{step}/{rank}/{context}".encode(), key=master, digest_size=32).digest()
    pairs = -(-count // 2)
    blocks = b"".join(number.to_bytes(16, "big") for number in range(pairs))
    stream = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)  # what counter mode adds to a text
    u, v = ((np.frombuffer(stream, "<u8") >> np.uint64(11)) + 0.5).reshape(2, -1) / 2**53
    radius = np.sqrt(-2 * np.log(u))
    return scale * np.concatenate([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)])[:count]


def test_the_noise_is_what_its_description_says_number_by_number():
    labels = {"purpose": "noise", "step": 7, "rank": 2, "context": "plan/sum"}
    out = torch.zeros(10_001, dtype=torch.float64)
    Randomness.from_seed(5).add_normal_(out, 3.7123, **labels)
    assert np.allclose(out.numpy(), by_hand(5, 3.7123, 10_001, **labels), rtol=1e-12, atol=1e-12)


def test_noise_and_sum_are_added_in_float64_and_rounded_once():
    """Neither noise, nor its deviation, nor the sum loses a digit before."""
    total = torch.randn(50_000) * 10.0 ** torch.randint(-3, 4, (50_000,))
    noisy = total.clone()
    Randomness.from_seed(5).add_normal_(noisy, 0.73, "noise", 7, context="x")
    expected = (total.double().numpy() + by_hand(5, 0.73, 50_000, "noise", 7, context="x")).astype(np.float32)
    # The logarithm of one library and that of another may differ in the last of 53 bits, which decides a rounding now and then.
    assert (noisy.numpy() != expected).mean() < 1e-3
    assert np.allclose(noisy.numpy(), expected, rtol=2.0**-23, atol=0)
    # All 24 bits of a float32 are there: each of the lowest is set in half of the numbers, whatever it was in the sum.
    bits = noisy.view(torch.int32).numpy()
    for bit in range(8):
        assert 0.48 < (bits >> bit & 1).mean() < 0.52
    assert len(np.unique(noisy.numpy())) > 0.99 * len(noisy)


def test_chunks_of_a_long_vector_are_not_repeated():
    long = normals(3 << 20)
    assert not torch.equal(long[: 1 << 20], long[1 << 20 : 2 << 20])
    assert abs(np.corrcoef(long[: 1 << 20].numpy(), long[1 << 20 : 2 << 20].numpy())[0, 1]) < 0.005


def test_per_record_draws_are_uniform_and_independent():
    draws = Randomness.from_seed(0).per_record("sample", 0, KEYS, 3)
    assert draws.min() >= 0 and draws.max() < 1
    for column in draws.T:
        assert scipy.stats.kstest(column, "uniform").pvalue > 1e-4
    assert np.abs(np.corrcoef(draws.T) - np.eye(3)).max() < 0.04
    later = Randomness.from_seed(0).per_record("sample", 1, KEYS, 3)
    assert abs(np.corrcoef(draws[:, 0], later[:, 0])[0, 1]) < 0.04


def test_a_records_draw_does_not_depend_on_the_other_records():
    randomness = Randomness.from_seed(0)
    every = randomness.per_record("sample", 4, KEYS, 2)
    assert np.array_equal(every[5::7], randomness.per_record("sample", 4, KEYS[5::7], 2))


def test_keys_are_secret_fresh_and_never_shown():
    one, two = Randomness.fresh(), Randomness.fresh()
    assert one.master != two.master
    assert one.master.hex() not in repr(one) and "secret" in repr(one)
    with pytest.raises(ValueError):
        Randomness(b"short")


def test_whoever_holds_the_owners_key_cannot_tell_the_noise():
    """Workers get it; with the coordinator's own they could take the noise off."""
    run = Randomness.from_seed(4)
    noises = []
    for randomness in (run, run.for_ranks(), run.for_ranks().for_ranks()):
        noises.append(torch.zeros(100_000))
        randomness.add_normal_(noises[-1], 1.0, "noise", 3, context="x")
    assert abs(np.corrcoef(torch.stack(noises)) - np.eye(3)).max() < 0.02
    assert len({run.master, run.for_ranks().master, run.key("shares", 0), run.key("shares", 1)}) == 4
