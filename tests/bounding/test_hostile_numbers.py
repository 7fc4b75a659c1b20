"""Weights, inputs and slopes of any finite size: no clipped gradient is longer than C, whatever float32 made of its norm."""

import math

import pytest
import torch
from torch import nn

from dpfed.baselines.noisy_statistics.record_gradients import StatisticsEngine
from dpfed.baselines.whole_batch.jacobians import LayerFactors
from dpfed.baselines.whole_batch.pair_engines import LogitEngine, SampleEngine
from dpfed.bounding.clipping import clip_factors
from dpfed.bounding.engines import ENGINES, GroupBatch, LayerwiseEngine, LoopEngine
from dpfed.bounding.engines.gradient_cache import BatchEngine
from dpfed.bounding.engines.shared_pass import add_up
from dpfed.bounding.layer_rules.grouping import Grouping
from dpfed.bounding.layer_rules.term import OuterProducts, Target
from dpfed.models.contrastive import per_view
from dpfed.models.parameters import TrainableVector
from dpfed.objectives.infonce import group_loss
from tests.baselines.noisy_statistics.released_lab import in_slots
from tests.bounding.layer_rules.test_layer_rules import LAYERS, SIZES, WAYS, case, go, watched, weighted
from tests.sparing import halved

LEAST, MOST = -30.0, 30.0  # powers of ten


def size(generator, *shape):
    """Random magnitudes over nearly all of float32's range."""
    return 10.0 ** (LEAST + (MOST - LEAST) * torch.rand(*shape, generator=generator))


@pytest.fixture(params=[False, True], ids=["", "denormals are zero"])
def generator(request):
    """Random numbers, on a processor that may treat tiny numbers as zero."""
    flushes = torch.set_flush_denormal(request.param)
    if request.param and not flushes:
        pytest.skip("this processor keeps denormals")
    yield torch.Generator().manual_seed(1)
    torch.set_flush_denormal(False)


@pytest.mark.parametrize(("name", "way", "generator"), halved(LAYERS, WAYS, [False, True]), indirect=["generator"])
def test_no_layers_clipped_gradient_is_longer_than_c(name, way, generator, monkeypatch):
    go(way, monkeypatch)
    sizes = SIZES["uneven"]
    _, tame, _, grouping = case(name, sizes)
    clipped = 0
    for trial in range(8):
        layer, inputs, seeds, _ = case(name, sizes)
        each = len(inputs) if trial % 2 else 1  # one size for all, or one for each record
        shape = (each, *[1] * (inputs.dim() - 1))
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter *= size(generator, 1).item()
        large = size(generator, *shape)
        if inputs.is_floating_point():
            inputs = tame * large
        slopes = size(generator, each, *[1] * (seeds.dim() - 1))
        if trial % 4 < 2:  # one side makes up for the other: a product that is neither tiny nor huge, of factors that are
            slopes = slopes**0.2 / large.view(slopes.shape)
        seeds = seeds * slopes
        terms, parameters = watched(layer, inputs, grouping, seeds)
        clip_norm = 10.0 ** (9 * torch.rand((), generator=generator).item() - 6)
        factors = clip_factors(sum(t.squares + t.slack for t in terms).sqrt(), clip_norm).float()
        for group in range(len(sizes)):
            alone = torch.where(torch.arange(len(sizes)) == group, factors, 0.0)
            parts = weighted(terms, alone, parameters)
            length = math.sqrt(sum(part.double().square().sum().item() for part in parts))
            assert length <= clip_norm, (trial, group, length / clip_norm)
            clipped += 0.5 < length / clip_norm
    assert clipped or name == "embedding with padding" or way != "written down"  # not everything is dropped


@pytest.mark.parametrize("exponents", [(18, -23), (-23, 18), (10, -30), (25, -25), (-25, 25), (0, 0)], ids=str)
def test_a_norm_that_is_measured_in_gram_matrices_is_never_short(exponents, monkeypatch):
    """Inputs of 1e18 and slopes of 1e-23: the slopes' inner products vanish, and the inputs make up for it in the gradient."""
    go("gram", monkeypatch)
    grouping = Grouping([4, 4], torch.device("cpu"), torch.float64)
    inputs, slopes = (torch.randn(8, 5, 24) * 10.0**power for power in exponents)
    one = OuterProducts(Target(0), inputs, slopes, grouping)
    assert not one._products  # measured by Gram matrices
    products = [slopes[rows].double().flatten(0, 1).T @ inputs[rows].double().flatten(0, 1) for rows in (slice(4), slice(4, 8))]
    true = torch.stack([product.norm() for product in products])
    measured = (one.squares + one.slack).sqrt()
    for clip_norm in true.min().item() * torch.tensor([1e-3, 0.5, 1.0, 2.0, 1e3]):
        assert (true * clip_factors(measured, clip_norm.item()) <= clip_norm).all()
    if exponents == (0, 0):
        assert torch.allclose(measured, true, rtol=1e-4)


@pytest.mark.parametrize("exponents", [(18, -23), (-23, 18), (10, -30), (0, 0)], ids=str)
def test_layerwise_clips_by_the_norm_and_its_rounding_slack(exponents, monkeypatch):
    go("gram", monkeypatch)
    inputs, slopes = (torch.randn(4, 5, 24) * 10.0**power for power in exponents)
    true = (slopes.double().flatten(0, 1).T @ inputs.double().flatten(0, 1)).norm().item()
    for clip_norm in (1e-3 * true, 0.5 * true):
        grouping = Grouping([4], torch.device("cpu"), torch.float64)
        one, parts = OuterProducts(Target(0), inputs, slopes, grouping), [torch.zeros(24, 24)]
        add_up([one], clip_norm, grouping, parts)
        assert not one._products  # measured by Gram matrices
        assert parts[0].double().norm() <= clip_norm


def test_jacobians_of_tiny_inputs_keep_their_length():
    deltas, inputs = torch.randn(3, 4, 2, 5) * 1e22, torch.randn(3, 2, 6) * 1e-24
    expected = torch.einsum("rkto,rti->rkoi", deltas.double(), inputs.double()).flatten(2)
    factors, weights = LayerFactors(deltas, inputs), torch.randn(3, 4).double()
    assert torch.allclose(factors.gram(), expected @ expected.mT, rtol=1e-9, atol=0)
    rows = torch.cat([part.unflatten(2, (-1, 6)) for part in factors.slices(6)], dim=2).flatten(2)
    assert torch.allclose(rows, expected, rtol=1e-9, atol=0)
    pulled = torch.einsum("rk,rkp->p", weights, expected).view(5, 6)
    assert torch.allclose(factors.pulled_back(weights), pulled, rtol=1e-9, atol=1e-14)


class Scaled(nn.Module):
    """Two layers whose weights may have any size, and unit embeddings."""

    def __init__(self, generator, bias):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1, bias=bias)
        self.second = nn.Linear(4 * 16, 6, bias=bias)
        self.register_buffer("temperature", torch.tensor(0.5))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter *= size(generator, 1).item()

    def embed_images(self, images):
        return nn.functional.normalize(self.second(self.first(images).relu().flatten(1)), dim=1, eps=1e-30)

    def forward(self, views):
        return {"image": per_view(self.embed_images, views["image"])}


RECORDS = 6
PIECES = {  # of which each is clipped to C; a weight of a similarity is at most 2 / temperature, for each of two directions
    "loop": lambda model: (LoopEngine(model), 2),
    "layerwise": lambda model: (LayerwiseEngine(model, if_unlike="go on"), 2),  # asked again for each of these models
    "batch": lambda model: (BatchEngine(model, "fp32", group_loss, 4), 2),
    "sample, exact": lambda model: (SampleEngine(model, RECORDS, "exact"), RECORDS),
    "sample, bound": lambda model: (SampleEngine(model, RECORDS, "bound"), RECORDS),
    "logit, exact": lambda model: (LogitEngine(model, RECORDS, "exact"), 2 * RECORDS * 2 / 0.5),
    "logit, bound": lambda model: (LogitEngine(model, RECORDS, "bound"), 2 * RECORDS * 2 / 0.5),
    "released": lambda model: (StatisticsEngine(model, "fp32", in_slots(batch=RECORDS)), RECORDS),
}


@pytest.mark.parametrize("name", PIECES)
def test_no_engines_sum_is_longer_than_its_clipped_pieces(name, generator):
    grouped = name in ENGINES or name == "batch"
    reached = 0.0
    for trial in range(12):
        model = Scaled(generator, bias=bool(trial % 3))
        images = torch.randn(RECORDS, 2, 3, 4, 4, generator=generator)
        images *= size(generator, *([RECORDS, 2] if trial % 2 else [1, 1]), 1, 1, 1)
        clip_norm = 10.0 ** (9 * torch.rand((), generator=generator).item() - 6)
        engine, pieces = PIECES[name](model)
        into = engine.zeros()
        engine.add_clipped(GroupBatch({"image": images}, [0, 3, RECORDS] if grouped else [0, RECORDS]), clip_norm, into)
        length = into.double().norm().item() / clip_norm
        assert length <= pieces, (trial, length)
        reached = max(reached, length / pieces)
    assert reached > 0.01  # not everything is dropped


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("steepness", [1e30, 1e34, 3e37])
def test_the_longest_float32_gradients_are_clipped_or_left_out(name, steepness):
    """Their factors are so small that float32 has few digits for them."""

    class Steep(nn.Module):
        def __init__(self):
            super().__init__()
            self.turn = nn.Linear(3, 2, bias=False)
            self.register_buffer("temperature", torch.tensor(1.0))

        def forward(self, views):
            z = self.turn(views["image"].mean((3, 4))) * steepness
            return {"image": torch.stack([z[..., 0].cos(), z[..., 0].sin(), z[..., 1].sin()], -1)}

    model = Steep()
    with torch.no_grad():
        model.turn.weight.mul_(1 / steepness)
    for clip_norm in (1e-9, 1e-6, 3.7e-3):
        into = TrainableVector(model).zeros()
        ENGINES[name](model).add_clipped(GroupBatch({"image": torch.randn(4, 2, 3, 2, 2)}, [0, 4]), clip_norm, into)
        assert into.double().norm() <= clip_norm
