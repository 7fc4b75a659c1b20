"""The secret draws: right distribution, independent, stateless, a function of each record alone."""

import numpy as np
import pytest
import scipy.stats
import torch

from dpfed.randomness import Randomness

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


@pytest.mark.parametrize("other", [{"step": 1}, {"owner": 1}, {"context": "x"}, {"seed": 1}])
def test_other_labels_give_independent_noise(other):
    # correlation of 200,000 independent pairs is below 0.01 except with probability 1e-5
    assert abs(np.corrcoef(normals().numpy(), normals(**other).numpy())[0, 1]) < 0.01


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
    some = randomness.per_record("sample", 4, KEYS[5::7], 2)
    assert np.array_equal(every[5::7], some)


def test_keys_are_secret_fresh_and_never_shown():
    one, two = Randomness.fresh(), Randomness.fresh()
    assert one.master != two.master
    assert one.master.hex() not in repr(one) and "secret" in repr(one)
    with pytest.raises(ValueError):
        Randomness(b"short")
