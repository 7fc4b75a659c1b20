"""Released statistics: given the release, one record moves the sum by C, and engines agree with an oracle."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from dpfed.baselines.noisy_statistics.released_embeddings import ReleasedMoments, release_noise
from dpfed.privacy.randomness import Randomness
from tests.baselines.noisy_statistics.released_lab import MODELS, SLOTS, batch_for, engine_for, first, in_slots, silent, total


class Given:
    """Statistics whose release came out the same for both neighbours."""

    def __init__(self, statistics, noisy: torch.Tensor) -> None:
        statistics.release = lambda *_: noisy.clone()
        self.slopes = statistics.slopes


GIVEN = {
    "embeddings": lambda: Given(in_slots(), 2 * normalize(torch.randn(SLOTS, 2, 16), dim=2)),
    "moments": lambda: Given(ReleasedMoments(12, silent()), 5 * torch.rand(20, 16)),
}


@pytest.mark.parametrize("clip_norm", [1e-3, 1e3])
@pytest.mark.parametrize("statistics", list(GIVEN))
@pytest.mark.parametrize("kind", list(MODELS))
def test_a_further_record_adds_its_clipped_gradient_and_no_more(kind, statistics, clip_norm):
    _, engine = engine_for(kind, GIVEN[statistics]())
    batch = batch_for(kind)
    with_all, without = total(engine, batch, clip_norm), total(engine, first(batch, 11), clip_norm)
    moved = (with_all - without).norm().item()
    assert 0 < moved <= clip_norm * (1 + 1e-5)
    if clip_norm == 1e-3:
        assert moved == pytest.approx(clip_norm, rel=1e-3)  # C is reached


@pytest.mark.parametrize("statistics", list(GIVEN))
def test_a_records_slopes_know_the_others_from_the_release_alone(statistics):
    given = GIVEN[statistics]()
    embeddings = normalize(torch.randn(12, 2, 16), dim=2)
    changed = torch.cat([embeddings[:1], normalize(torch.randn(11, 2, 16), dim=2)])
    one, two = (given.slopes(z, torch.tensor(0.1), 0) for z in (embeddings, changed))
    assert torch.allclose(one.embeddings[0], two.embeddings[0], atol=1e-6)
    assert torch.allclose(one.temperature[0], two.temperature[0], atol=1e-6)
    assert not torch.allclose(one.embeddings[1], two.embeddings[1], atol=1e-3)


def test_a_record_is_not_contrasted_with_its_own_slot():
    statistics = in_slots()
    noisy = normalize(torch.randn(SLOTS, 2, 16), dim=2)
    embeddings = normalize(torch.randn(1, 2, 16), dim=2)
    slot = statistics.draw_slots(1, 0).item()
    statistics.denoised = lambda noisy: noisy
    slopes = []
    for changed in (None, slot, (slot + 1) % SLOTS):
        one = noisy.clone()
        if changed is not None:
            one[changed] = embeddings[0]
        slopes.append(Given(statistics, one).slopes(embeddings, torch.tensor(0.1), 0).embeddings)
    assert torch.equal(slopes[0], slopes[1]) and not torch.allclose(slopes[0], slopes[2], atol=1e-3)


def pairs(model, views) -> torch.Tensor:
    z = model(views)
    return torch.cat([z["image"][:, :1], z["text"][:, :1]], 1) if "text" in z else z["image"][:, :2]


@pytest.mark.parametrize("clip_norm", [0.5, 1e3])
@pytest.mark.parametrize("kind", list(MODELS))
def test_the_sum_agrees_with_one_backward_pass_per_record(kind, clip_norm):
    statistics = in_slots(release_noise(Randomness.from_seed(1), 0.3, 0, ""))
    model, engine = engine_for(kind, statistics)
    batch = batch_for(kind)
    releases, release = [], statistics.release
    statistics.release = lambda *given: releases.append(release(*given)) or releases[0]
    norms = engine.add_clipped(batch, clip_norm, got := engine.zeros())
    slot, negatives = statistics.draw_slots(12, 0), statistics.denoised(releases[0])
    expected = torch.zeros_like(got)
    for i in range(12):
        z = pairs(model, {name: view[i : i + 1] for name, view in batch.views.items()})[0]
        loss = 0
        for anchor, other in ((z[0], 1), (z[1], 0)):
            terms = [torch.exp(anchor @ negatives[m, other] / model.temperature) for m in range(SLOTS) if m != slot[i]]
            positive = torch.exp(z[0] @ z[1] / model.temperature)
            loss = loss - torch.log(positive / (positive + sum(terms)))
        parameters = list(model.parameters())
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        assert norms[i].item() == pytest.approx(gradient.norm().item(), rel=1e-4)
        expected += gradient * min(1.0, clip_norm / gradient.norm().item())
    assert (norms > 0.5).any()
    assert (got - expected).norm() / expected.norm() < 1e-4


@pytest.mark.parametrize("kind", list(MODELS))
def test_clean_moments_give_the_batchs_barlow_twins_gradient(kind):
    model, engine = engine_for(kind, ReleasedMoments(12, silent()))
    batch = batch_for(kind)
    a, b = normalize(pairs(model, batch.views), dim=2).unbind(1)
    standard = [(z - z.mean(0)) / z.var(0, correction=0).clamp(min=0.1 / 16).sqrt() for z in (a, b)]
    correlation = standard[0].T @ standard[1] / 12
    loss = (torch.where(torch.eye(16, dtype=torch.bool), 1.0, 5e-3) * (torch.eye(16) - correlation) ** 2).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    expected = torch.cat([g.flatten() for g in gradients]).double()
    assert (total(engine, batch, 1e9) / 12 - expected).norm() / expected.norm() < 1e-3


@pytest.mark.parametrize("statistics", list(GIVEN))
def test_a_record_that_is_not_finite_contributes_nothing(statistics):
    _, engine = engine_for("one tower", GIVEN[statistics]())
    batch = batch_for("one tower")
    clean = total(engine, first(batch, 11), 1.0)
    batch.views["image"][11] = math.nan
    assert torch.allclose(total(engine, batch, 1.0), clean, atol=1e-6)
