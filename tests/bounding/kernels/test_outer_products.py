"""Triton's kernels against the library, group by group, by Triton's interpreter: no GPU is needed."""

import importlib
import itertools

import pytest
import torch
import torch.nn.functional as F

from dpfed.bounding.engines.layerwise import LayerwiseEngine
from dpfed.bounding.engines.loop import LoopEngine
from dpfed.bounding.engines.padding import Padding
from dpfed.bounding.layer_rules.grouping import Grouping
from dpfed.config import ObjectiveConfig
from dpfed.models.building import build_model
from tests.bounding.engines.cancelling import MODELS, moved_by_a_stranger
from tests.bounding.engines.test_engines import WITH_TEMPERATURE, batch_for
from tests.bounding.layer_rules.test_layer_rules import LAYERS, SIZES, by_autograd, case, watched, weighted
from tests.sparing import sparing

pytest.importorskip("triton")
GEOMETRIES = {
    "3x3": ((3, 3), (1, 1), (1, 1), (1, 1), 5, 7, 6),
    "3x3, stride 2": ((3, 3), (2, 2), (1, 1), (1, 1), 20, 17, 8),
    "1x1, stride 2": ((1, 1), (2, 2), (0, 0), (1, 1), 4, 3, 6),
    "7x7, stride 2": ((7, 7), (2, 2), (3, 3), (1, 1), 3, 4, 9),
    "dilated": ((3, 3), (1, 1), (2, 2), (2, 2), 4, 4, 7),
    "oblong": ((1, 3), (1, 2), (0, 1), (1, 1), 4, 6, 6),
}


def groups_of(kind, geometry):
    """Slopes and images, where groups begin, and each group's gradient by the library; one group is empty."""
    kernel, stride, padding, dilation, channels, outputs, side = geometry
    images, weight = torch.randn(9, channels, side, side).to(kind), torch.randn(outputs, channels, *kernel).to(kind)
    slopes = torch.randn_like(F.conv2d(images, weight, None, stride, padding, dilation))
    offsets = [0, 2, 2, 6, 9]
    expected = []
    for first, end in zip(offsets, offsets[1:], strict=False):
        g, x, w = slopes[first:end].float(), images[first:end].float(), weight.float()
        moves = (list(stride), list(padding), list(dilation), False, [0, 0], 1)
        backward = torch.ops.aten.convolution_backward
        expected.append(backward(g, x, w, None, *moves, [False, True, False])[1] if end > first else torch.zeros_like(w))
    sides = (tensor.permute(0, 2, 3, 1).contiguous() for tensor in (slopes, images))
    return (*sides, torch.tensor(offsets, dtype=torch.int32), kernel, stride, padding, dilation), torch.stack(expected)


KINDS = (torch.float32, torch.bfloat16)
# Each geometry with one type and one number of pieces; all four combinations of these occur, and the rest is slow.
TRIED = {(name, KINDS[number % 2], 1 if number in (2, 3) else 3) for number, name in enumerate(GEOMETRIES)}
CASES = [
    pytest.param(*case, marks=[pytest.mark.slow] * (case not in TRIED)) for case in itertools.product(GEOMETRIES, KINDS, (1, 3))
]


@pytest.fixture(params=[1, 3])
def pieces(request, monkeypatch):
    """Into how many a group's rows are cut."""
    file = importlib.import_module("dpfed.bounding.kernels.outer_products")
    monkeypatch.setattr(file, "_pieces", lambda programs, rows: request.param)


@pytest.mark.long
@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(("geometry", "kind", "pieces"), CASES, indirect=["pieces"])
def test_every_group_has_the_librarys_gradient(geometry, kind):
    from dpfed.bounding.kernels import outer_products

    given, expected = groups_of(kind, GEOMETRIES[geometry])
    torch.testing.assert_close(outer_products(*given).permute(0, 1, 4, 2, 3), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.usefixtures("pieces")
def test_a_groups_gradient_has_the_same_bits_wherever_it_stands():
    from dpfed.bounding.kernels import outer_products

    slopes, images, others = torch.randn(12, 3, 3, 5), torch.randn(12, 3, 3, 4), torch.randn(18, 3, 3, 5) * 1e4
    moves = ((3, 3), (1, 1), (1, 1), (1, 1))
    alone = outer_products(slopes, images, torch.tensor([0, 12], dtype=torch.int32), *moves)[0]
    for before in (1, 10):
        g = torch.cat([others[:before], slopes, others[before:]])
        x = torch.cat([others[:before, ..., :4], images, others[before:, ..., :4]])
        offsets = torch.tensor([0, before, before + 12, 30], dtype=torch.int32)
        assert torch.equal(outer_products(g, x, offsets, *moves)[1], alone)


@pytest.fixture
def small_passes(as_on_a_gpu, asked_each_time, monkeypatch):
    """A GPU's passes, of 16 records, and two to find differences: the interpreter takes seconds for each."""
    monkeypatch.setattr("dpfed.bounding.engines.batch_invariance._TRIALS", 2)
    on = Padding.on
    monkeypatch.setattr(Padding, "on", lambda device, size, records, pixels: on(device, size, 12, pixels))


@pytest.mark.slow
@pytest.mark.usefixtures("small_passes")
@pytest.mark.parametrize("name", ["cnn", "two towers"])
@pytest.mark.filterwarnings("ignore:invalid value")  # of a group that is not finite
def test_a_gpus_pass_comes_to_the_loops_sum(name):
    model, batch = build_model(MODELS[name], WITH_TEMPERATURE), batch_for(MODELS[name])
    batch.views["image"] = batch.views["image"][..., ::2, ::2]
    batch.views["image"][0] = torch.inf  # a group that is not finite adds nothing
    sums, norms = [], []
    for engine in (LoopEngine(model), LayerwiseEngine(model, group_size=4, if_unlike="raise")):
        sums.append(engine.zeros())
        norms.append(engine.add_clipped(batch, 0.05, sums[-1]).sort().values)
    torch.testing.assert_close(*norms, rtol=1e-4, atol=0, equal_nan=True)
    assert torch.isfinite(sums[1]).all() and (sums[0] - sums[1]).norm() < 1e-4 * sums[0].norm()


@pytest.mark.slow
@pytest.mark.usefixtures("small_passes")
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_stranger_moves_nobody_in_a_gpus_pass(precision):
    generator = torch.Generator().manual_seed(7)
    model = build_model(MODELS["cnn"], ObjectiveConfig(temperature=0.2))
    few = {"counts": (3,), "others": 4, "side": 8}
    assert moved_by_a_stranger("layerwise", model, "near", 1e-5, generator, precision, **few) <= 1


def of_all_places(layer, inputs, seeds, sizes):
    """Squared norms of the groups and their weighted sum, with all places of a pass together."""
    grouping = Grouping(sizes, torch.device("cpu"), torch.float64, places=8, slots=6, batched=True)
    terms, parameters = watched(layer, inputs, grouping, seeds)
    factors = torch.cat([torch.linspace(0.2, 1, len(sizes)), torch.zeros(8 - len(sizes))])
    return sum(term.squares for term in terms), weighted(terms, factors, parameters), factors, parameters


# Of layers that go the same way through a kernel, one is tried at once; the kernel's own geometries are tried above.
TWINS = (
    "3x3, without padding", "3x3, stride 2, dilated", "3x2, strides 3 and 1", "standardised, stride 2, in groups",
    "attention, tokens first", "masked attention", "LayerNorm of rows", "BatchNorm of rows by fixed statistics",
)  # fmt: skip


@pytest.mark.parametrize("name", sparing(LAYERS, *(name for name in LAYERS if name not in TWINS)))
def test_every_layers_places_have_autograds_gradients(name):
    layer, inputs, seeds, _ = case(name, SIZES["uneven"])
    squares, parts, factors, parameters = of_all_places(layer, inputs, seeds, SIZES["uneven"])
    gradients = by_autograd(layer, inputs, seeds, SIZES["uneven"], parameters)
    norms = torch.tensor([sum(part.double().square().sum() for part in gradient) for gradient in gradients])
    torch.testing.assert_close(squares, norms, rtol=2e-5, atol=1e-8)
    for index, part in enumerate(parts):
        expected = sum(factor * gradient[index] for factor, gradient in zip(factors, gradients, strict=False))
        torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["3x3", "depthwise", "linear", "linear on tokens", "linear, only the bias", "adapted linear"])
def test_layers_in_bf16_have_their_own_gradients(name):
    layer, inputs, _, _ = case(name, SIZES["uneven"])
    with torch.autocast("cpu", torch.bfloat16):
        seeds = torch.randn_like(layer(inputs)).float()
        squares, parts, factors, parameters = of_all_places(layer, inputs, seeds, SIZES["uneven"])
    gradients = by_autograd(layer, inputs, seeds, SIZES["uneven"], parameters)
    norms = torch.tensor([sum(part.double().square().sum() for part in gradient) for gradient in gradients])
    torch.testing.assert_close(squares, norms, rtol=4e-2, atol=0)
    for index, part in enumerate(parts):
        expected = sum(factor * gradient[index] for factor, gradient in zip(factors, gradients, strict=False))
        assert (part - expected).norm() <= 2e-2 * expected.norm()


def test_rows_at_their_places_have_torchs_gradients():
    grouping = Grouping([3, 0, 6, 1], torch.device("cpu"), torch.float64, places=8, slots=6, records=14, batched=True)
    rows, slopes = torch.randn(14, 2, requires_grad=True), torch.randn(8, 6, 2)
    expected = torch.autograd.grad(torch.cat([rows, rows.new_zeros(1, 2)])[grouping.slots], rows, slopes)
    assert torch.equal(torch.autograd.grad(grouping.by_place(rows), rows, slopes)[0], expected[0])
