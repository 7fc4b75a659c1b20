"""Keyed noise: the same numbers get the same noise, and whatever differs, in a bit or in a label, gets noise of its own."""

import hashlib

import pytest
import torch

from dpfed.privacy.noise import GaussianNoise, KeyedNoise, digest_of
from dpfed.privacy.randomness import Randomness

SIZE = 40_000  # two independent vectors of so many numbers correlate by less than 0.03, except with probability 1e-9
STD = 1.7012345678901234
LABELS = {"purpose": "share", "context": "plan", "rank": 3}


def keyed(seed: int = 1, **labels) -> KeyedNoise:
    return KeyedNoise(GaussianNoise(STD), Randomness.from_seed(seed), **{**LABELS, **labels})


def noise_on(values: torch.Tensor, step: int = 5, seed: int = 1, **labels) -> torch.Tensor:
    return keyed(seed, **labels).add_(values.clone(), step).double() - values.double()


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    return abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].item())


@pytest.fixture(scope="module")
def values() -> torch.Tensor:
    return torch.randn(200, SIZE // 200, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("letters", [32, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_its_key_is_the_hash_of_every_bit_and_all_labels(values, dtype, letters):
    values = values.to(dtype)
    digest = hashlib.sha256(values.numpy().tobytes()).hexdigest()[:letters]
    expected = values.clone()
    Randomness.from_seed(1).add_normal_(expected.view(-1), STD, "share", 5, 3, f"plan/{digest}")
    noisy = values.clone()
    assert keyed(letters=letters).add_(noisy, 5) is noisy
    assert torch.equal(noisy, expected)
    assert digest_of(values, letters) == digest and len(digest_of(values)) == 32


@pytest.mark.parametrize("place", [0, SIZE // 2 - 1, SIZE // 2, SIZE - 1])
def test_numbers_one_bit_apart_get_independent_noise(values, place):
    """With the same noise, whoever saw both could subtract them from each other."""
    other = values.clone()
    other.view(-1).view(torch.int32)[place] ^= 1
    assert correlation(noise_on(values), noise_on(other)) < 0.03
    assert torch.equal(noise_on(values), noise_on(values.clone()))


@pytest.mark.parametrize("change", [{"step": 6}, {"seed": 2}, {"purpose": "noise"}, {"context": "other"}, {"rank": 4}], ids=str)
def test_other_steps_secrets_and_labels_get_independent_noise(values, change):
    assert correlation(noise_on(values), noise_on(values, **change)) < 0.03


def test_sums_stay_exact_under_noise_rounded_down():
    """k + floor(n) = floor(k + n): what is released is a function of the exact noisy sum, whatever lies in the sum."""
    unit, whole = 2.0**-24, torch.tensor([0, 1, -1, 2**52, -(2**52), 2**61, -(2**61), 7] * 500)
    noise = KeyedNoise(GaussianNoise(STD, unit), Randomness.from_seed(1), **LABELS)
    noisy, normal = noise.steps(whole, 5), torch.zeros(len(whole), dtype=torch.float64)
    Randomness.from_seed(1).add_normal_(normal, STD / unit, "share", 5, 3, f"plan/{digest_of(whole)}")
    assert torch.equal(noisy - whole, normal.floor().long())
    assert torch.equal(noise.noisy(whole, 5), (noisy.double() * unit).float())


@pytest.mark.parametrize("bits", [20, 40])
def test_noise_in_steps_has_the_planned_deviation_and_mean(bits):
    unit, size = 2.0**-bits, 200_000
    noise = KeyedNoise(GaussianNoise(STD, unit), Randomness.from_seed(1), **LABELS)
    noisy = noise.noisy(torch.zeros(size, dtype=torch.int64), 0).double()
    assert noisy.std().item() == pytest.approx(STD, rel=4 * (2 * size) ** -0.5)
    assert abs(noisy.mean().item()) < 5 * STD / size**0.5


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_rows_that_lack_their_own_bits_get_no_noise(rows):
    """Fewer bits than numbers would be repeated: two rows with the same noise, of which the difference has none."""
    values = torch.zeros(3, 8, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"expected bits of shape \(3, 8\)"):
        GaussianNoise(STD).steps_of(values, torch.ones(rows, 8, dtype=torch.int64))
