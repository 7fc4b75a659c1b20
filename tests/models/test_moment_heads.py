"""Heads of moments, against the formula in numpy, and at the ends of the noise."""

import numpy as np
import pytest
import torch

from dpfed.models.basis import random_bases, random_basis
from dpfed.models.moment_heads import MomentNoise, centres, heads
from dpfed.models.moment_layout import MomentLayout, Moments
from dpfed.models.moments import MomentHeads

K, N = 10, 500


def moments_of(seed=0, towers=2):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, K, generator=generator, dtype=torch.float64)
    y = x @ torch.randn(K, K, generator=generator, dtype=torch.float64)
    x, y = (side / side.norm(dim=1, keepdim=True) for side in (x, y))
    cross = x.T @ y / N if towers == 2 else x.T @ x / N
    return Moments(torch.stack([x.mean(0), y.mean(0)][:towers]), cross, torch.stack([x.T @ x / N, y.T @ y / N][:towers]))


def scores(pair):
    return (pair[0] @ pair[1].T).numpy()


@pytest.mark.parametrize("aligned", [False, True])
def test_heads_are_the_regularised_solution(aligned):
    layout, noise, moments = MomentLayout(K, 2, 0.05, 0.8), MomentNoise(N, 1.5), moments_of()
    size = 1.5 * np.sqrt(K) / N
    ridge = (1.0 if aligned else 0.15) / K + 6 * size * (1 + aligned * size * K / 10)
    a, b = (np.linalg.inv(auto.numpy() + ridge * np.eye(K)) for auto in moments.autos)
    alike = min(1, max(0.05, 5 * (np.trace(moments.cross.numpy()) + 2 * 1.5 / N / layout.scales[1] * np.sqrt(K))))
    assert 0 <= 1 - layout.scales[1] / np.sqrt(0.8) < 2**-7  # a whole number of steps, rounded down
    left, values, right = np.linalg.svd(a @ (moments.cross.numpy() + aligned * alike * ridge * np.eye(K)) @ b)
    np.testing.assert_allclose(scores(heads(layout, noise, moments, aligned)), left * np.sqrt(values / values[0]) @ right)


def test_without_a_release_features_stay_as_they_are():
    nothing = Moments(torch.zeros(2, K), torch.zeros(K, K), torch.zeros(2, K, K))
    for aligned in (False, True):
        similarities = scores(heads(MomentLayout(K, 2, 0.05, 0.8), MomentNoise(N, 1.0), nothing, aligned))
        np.testing.assert_allclose(similarities, np.eye(K), atol=1e-12)


def test_more_epsilon_never_hurts_and_none_changes_no_tower():
    """Pairs agree in some directions of what two towers see and not in others; noise multipliers as of epsilon 0 to 30."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def unit(vectors):
        return vectors / vectors.norm(dim=1, keepdim=True)

    k, records, held_out = 32, 1500, 300
    sizes, apart, mean = torch.linspace(1, 0.2, k).double(), (torch.arange(k) % 3 == 0).double(), drawn(k) / 2
    agreed = drawn(records + held_out, k) * sizes * (1 - 0.7 * apart)
    x, y = (unit(agreed + 0.2 * drawn(*agreed.shape) + apart * drawn(*agreed.shape) * sizes + mean) for _ in range(2))
    layout = MomentLayout(k, 2, 0.05, 0.8)

    def recall(z, w):
        scores = unit(z[records:]) @ unit(w[records:]).T
        return (scores.argmax(1) == torch.arange(held_out)).double().mean().item()

    def found(sigma):
        noise, std = MomentNoise(records, sigma), [sigma / records / scale for scale in layout.scales]
        means = torch.stack([x[:records].mean(0), y[:records].mean(0)]) + std[0] * drawn(2, k)
        sides = [
            unit(side - centre) for side, centre in zip((x, y), centres(layout, noise, Moments(means, None, None)), strict=True)
        ]
        autos = torch.stack([side[:records].T @ side[:records] / records + std[2] * _symmetric(drawn(k, k)) for side in sides])
        cross = sides[0][:records].T @ sides[1][:records] / records + std[1] * drawn(k, k)
        return recall(
            *(side @ head for side, head in zip(sides, heads(layout, noise, Moments(means, cross, autos), True), strict=True))
        )

    public = recall(x, y)
    curve = [np.mean([found(sigma) for _ in range(4)]) for sigma in (1e5, 24, 8.8, 3.2, 1.25, 0.55, 0.25)]
    assert curve[0] == pytest.approx(public, abs=0.002)
    assert all(more > less - 0.015 for less, more in zip(curve, curve[1:], strict=False)) and curve[-1] > public + 0.1


def _symmetric(noise):
    return (noise.triu(1) + noise.triu(1).T) / np.sqrt(2) + torch.diag(noise.diag())


def test_views_of_images_have_one_head_and_no_negative_score():
    moments = moments_of(towers=1)
    noisy = torch.randn(K, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moments = Moments(moments.means, moments.cross + (noisy + noisy.T) / 40, moments.autos)
    first, second = heads(MomentLayout(K, 1, 0.05, 0.8), MomentNoise(3000, 6.0), moments, True)
    assert torch.equal(first, second)
    assert np.linalg.eigvalsh(scores((first, second))).min() > -1e-9


def test_few_images_alone_leave_the_public_tower():
    """As the run says beforehand: whatever was released, features stay as they are."""
    layout, moments = MomentLayout(K, 1, 0.05, 0.8), moments_of(towers=1)
    for records, left in ((999, True), (1000, False)):
        noise = MomentNoise(records, 0.1, fewest=1000)
        made = MomentHeads(layout, noise, random_bases((K,), K, True), True)
        with torch.no_grad():
            for step in (0, 1):
                made.released[layout.place(step)] = layout.encoded(step, moments).float()
        head = made.head("image")
        assert (torch.equal(head.matrix, torch.eye(K)) and not head.centre.any()) == left
    assert not MomentNoise(999, 0.1, fewest=1000).leaves_public(2)


def test_a_mean_that_could_be_noise_alone_is_none():
    layout, noise = MomentLayout(400, 1, 0.05, 0.8), MomentNoise(4 * N, 8.0)
    std = 2.0 / N / layout.scales[0]
    drawn = std * torch.randn(1, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not centres(layout, noise, Moments(drawn, *[torch.zeros(0)] * 2)).any()
    true = torch.full((1, 400), 0.05, dtype=torch.float64)
    assert (centres(layout, noise, Moments(true + drawn, *[torch.zeros(0)] * 2)) - true).norm() < drawn.norm()


def test_projections_are_orthonormal_and_the_same_everywhere():
    one, two = (random_basis(40, K, number).rows for number in (0, 1))
    torch.testing.assert_close(one @ one.T, torch.eye(K))
    assert torch.equal(one, random_basis(40, K, 0).rows) and not torch.allclose(one, two)
    assert torch.equal(random_basis(K, K, 1).rows, torch.eye(K))
