"""The groups' figures as numbers of the sum: each group stays in its box, and every engine finds the same."""

import math

import pytest
import torch

from dpfed.bounding.clipping import Clip, clip_factors
from dpfed.bounding.engines import ENGINES, build_engine
from dpfed.bounding.statistics import sum_of_statistics
from dpfed.config import ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.objectives.infonce import group_loss
from dpfed.privacy.plan import PrivacyPlan
from tests.bounding.engines.cancelling import a_further_group_of_nothing
from tests.bounding.engines.test_engines import MODELS, STARTS, batch_for

PROGRESS = {"share": 0.01, "quantile": 0.5, "loss_range": 4.0, "phase": 5}
PLAN = PrivacyPlan.of(2000, 256, 4, 0.7, 100, 1.3, 1e-5, progress=PROGRESS)
UNIT = PLAN.grid_of().unit
HOSTILE = [0.0, -0.0, 1e-300, 1e-9, 0.69, 0.7, 0.71, 1e30, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("norm", HOSTILE)
@pytest.mark.parametrize("loss", HOSTILE)
def test_whatever_a_group_is_it_moves_the_sum_within_its_box(norm, loss):
    statistics = PLAN.statistics
    losses = torch.tensor([[loss], [2.0]], dtype=torch.float64)
    figures = UNIT * sum_of_statistics(statistics, torch.tensor([norm], dtype=torch.float64), losses, 0.7, 0.7, UNIT).double()
    assert figures.abs().max() <= statistics.unit / 2
    # So with the gradient of norm C that it may have beside it, it lies in the ball that the noise is for.
    assert math.hypot(PLAN.bounding.clip_norm, figures.norm().item()) <= PLAN.longest_part


def test_the_figures_are_what_they_are_called():
    """Norms away from the thresholds, losses within their range: a mean of plain shares and losses."""
    norms = torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    norms = norms[((norms - 0.7).abs() > 0.05) & ((norms - 2).abs() > 0.15)]
    losses = torch.stack([torch.rand(len(norms), dtype=torch.float64) * 8, torch.full((len(norms),), 2.0)])
    figures = UNIT * sum_of_statistics(PLAN.statistics, norms, losses, 2.0, 0.7, UNIT) / PLAN.statistics.unit / len(norms) + 0.5
    expected = [(norms < 2).double().mean(), losses[0].mean() / 2 / 4.0, (norms < 0.7).double().mean()]
    assert PLAN.statistics.names == ("below", "loss", "within")
    assert figures.tolist() == pytest.approx(
        [value.item() for value in expected], abs=1e-5
    )  # a step of the grid is 1e-6 of a figure's range


@pytest.mark.parametrize("model", ["cnn", "two towers"])
@pytest.mark.parametrize("name", list(ENGINES))
def test_every_engine_gives_the_losses_of_its_groups(model, name):
    """Against the loss of each group by itself, in any order; a group of one has none."""
    batch, network = batch_for(MODELS[model]), build_model(MODELS[model], ObjectiveConfig())
    engine, losses = build_engine(name, network, "fp32", group_loss, 4), []
    into = engine.zeros()
    norms = engine.add_clipped(batch, 1.0, into, losses)
    plain = engine.zeros()
    assert torch.equal(engine.add_clipped(batch, 1.0, plain), norms) and torch.equal(plain, into)
    expected = []
    for first, end in zip(STARTS, STARTS[1:], strict=False):
        if end - first > 1:
            views = {kind: view[first:end] for kind, view in batch.views.items()}
            present = torch.ones(end - first, dtype=torch.bool)
            expected.append((group_loss(network(views), present, network.temperature).item(), float(end - first)))
    assert torch.allclose(torch.tensor(sorted(losses[0].T.tolist())), torch.tensor(sorted(map(list, expected))), rtol=1e-5)
    assert losses[0].dtype == torch.float64 and len(norms) == 4


@pytest.mark.parametrize("name", list(ENGINES))
def test_others_figures_stay_what_they_are(name):
    """Here the threshold lies on a norm, and another group shares the pass."""
    batch, network = batch_for(MODELS["two towers"]), build_model(MODELS["two towers"], ObjectiveConfig())
    engine, kept = build_engine(name, network, "fp32", group_loss, 4), []
    for records in (0, 2, 40):
        one, losses = a_further_group_of_nothing(batch, records) if records else batch, []
        norms = engine.add_clipped(one, 1.0, engine.zeros(), losses)
        kept.append((norms[torch.isfinite(norms)], losses[0][:, torch.isfinite(losses[0][0])]))
    threshold = kept[0][0].median().item()
    sums = [sum_of_statistics(PLAN.statistics, norms, losses, threshold, threshold, UNIT) for norms, losses in kept]
    assert torch.equal(sums[0], sums[1]) and torch.equal(sums[0], sums[2])


def test_a_figure_is_the_same_at_every_place_among_others():
    norms, losses = torch.rand(37, dtype=torch.float64) * 2, torch.rand(2, 37, dtype=torch.float64) + 1
    whole = sum_of_statistics(PLAN.statistics, norms, losses, 1.0, 0.7, UNIT)
    each = [sum_of_statistics(PLAN.statistics, norms[n : n + 1], losses[:, n : n + 1], 1.0, 0.7, UNIT) for n in range(37)]
    assert torch.equal(whole, sum(each))


@pytest.mark.parametrize("norm", [0.0, 1e-12, 0.01, 1.0, 1e6, 1e20])
def test_rules_of_clipping_keep_every_gradient_within_c(norm):
    norms = torch.tensor([norm], dtype=torch.float64)
    for most, stability in ((1.0, 0.0), (250.0, 0.0), (math.inf, 0.01)):
        assert (norms * clip_factors(norms, Clip(0.7, most, stability))).item() <= 0.7
    normalised = (norms * clip_factors(norms, Clip(0.7, math.inf, 0.01))).item()
    assert normalised == pytest.approx(0.7 * norm / (norm + 0.01), rel=6e-5)
    adapted = (norms * clip_factors(norms, Clip(0.7, 0.7 / 0.02))).item() * 0.02 / 0.7  # clipped to 0.02, in units of it
    assert adapted == pytest.approx(min(norm, 0.02), rel=6e-5)


def test_numbers_that_are_none_are_left_out_by_every_rule():
    norms = torch.tensor([math.nan, math.inf, 1e38], dtype=torch.float64)
    assert clip_factors(norms, Clip(1.0, math.inf, 0.01)).tolist() == [0.0, 0.0, 0.0]
