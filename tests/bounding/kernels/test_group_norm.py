"""GroupNorm, addition and ReLU in one kernel against plain torch in float64, by Triton's interpreter: no GPU is needed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpfed.bounding.layer_rules.grouping import Grouping
from dpfed.models.norm import norm_relu
from tests.bounding.layer_rules.test_layer_rules import SIZES, watched
from tests.bounding.layer_rules.test_layer_rules import by_autograd as by_autograd_by_group

pytest.importorskip("triton")
from dpfed.bounding.kernels import normalise, pull_back  # noqa: E402

IMAGES = {  # images, channels, side, channel groups
    "one chunk": (3, 8, 5, 4),
    "many chunks": (2, 4, 33, 2),
    "channels that are no power of two": (2, 36, 6, 3),
    "several tiles": (2, 96, 4, 48),
    "all channels in one group": (2, 80, 3, 1),
    "one position": (2, 6, 1, 3),
}
WANTED = {"norm": (False, False), "norm, ReLU": (True, False), "norm, addition, ReLU": (True, True)}


def by_autograd(x, w, b, groups, relu, added, slopes):
    """The output and all gradients, in float64; those of scale and shift image by image."""
    x, w, b, slopes = (value.double() for value in (x, w, b, slopes))
    added = None if added is None else added.double().requires_grad_()
    x, w, b = x.requires_grad_(), w.repeat(len(x), 1).requires_grad_(), b.repeat(len(x), 1).requires_grad_()
    y = torch.cat([F.group_norm(one[None], groups, *of) for one, *of in zip(x, w, b, strict=True)])
    y = y if added is None else y + added
    y = y.relu() if relu else y
    gradients = iter(torch.autograd.grad(y, [x, *([] if added is None else [added]), w, b], slopes))
    return y, next(gradients), None if added is None else next(gradients), *gradients


def given(shape, adds, kind):
    n, c, side, groups = shape
    images, added, slopes = (torch.randn(n, c, side, side).to(kind) for _ in range(3))
    if side > 1:
        images[0] = images[0] * 0.1 + 30  # a mean that hides the variance of sums of squares
    return images, torch.rand(c) + 0.5, torch.randn(c), groups, added if adds else None, slopes


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("relu", "adds"), WANTED.values(), ids=WANTED)
@pytest.mark.parametrize("shape", IMAGES.values(), ids=IMAGES)
def test_it_has_the_numbers_of_plain_torch(shape, relu, adds, kind):
    images, w, b, groups, added, slopes = given(shape, adds, kind)
    out, means, inverses = normalise(images, w, b, groups, 1e-5, relu, added)
    *gradients, both = pull_back(slopes, images, out, w, means, inverses, relu, adds)
    y, *expected = by_autograd(images, w, b, groups, relu, added, slopes)
    assert out.dtype == kind and out.is_contiguous(memory_format=torch.channels_last)
    rounding = {"rtol": 2e-2, "atol": 2e-2} if kind == torch.bfloat16 else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(out.double(), y, **rounding)
    for one, other in zip([*gradients, *both.unbind(1)], expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert (one.double() - other).norm() <= (1e-2 if kind == torch.bfloat16 else 1e-4) * other.norm() + 1e-4


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_an_image_has_the_same_bits_wherever_it_stands(kind):
    image, added, slopes = (torch.randn(1, 8, 9, 9).to(kind) for _ in range(3))
    w, b, seen = torch.rand(8), torch.randn(8), []
    for before, after, scale in ((0, 0, 1.0), (3, 2, 1e6), (1, 4, torch.nan)):
        x, a, g = (
            torch.cat([torch.randn(before, 8, 9, 9).to(kind) * scale, one, torch.randn(after, 8, 9, 9).to(kind) * scale])
            for one in (image, added, slopes)
        )
        out, means, inverses = normalise(x, w, b, 4, 1e-5, True, a)
        gradients = pull_back(g, x, out, w, means, inverses, True, True)
        seen.append([part[before].clone() for part in (out, means, inverses, *gradients)])
    assert all(torch.equal(one, other) for parts in seen[1:] for one, other in zip(seen[0], parts, strict=True))


def test_what_is_no_number_stays_none():
    x = torch.randn(2, 4, 3, 3)
    x[0, 0, 0, 0] = torch.nan
    out, means, inverses = normalise(x, torch.ones(4), torch.zeros(4), 2, 1e-5, True)
    assert out[0, :2].isnan().all() and not out[0, 2:].isnan().any() and not out[1].isnan().any()


class Block(nn.Module):
    """What a residual network calls, with a shortcut that is normalised, too."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.relu = nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()
        self.beside = nn.Sequential(nn.Conv2d(4, 8, 1), nn.GroupNorm(4, 8))

    def forward(self, x):
        return norm_relu(self.first(x), self.norm, self.relu, lambda: self.beside(x))


@pytest.mark.long
@pytest.mark.parametrize("batched", [False, True])
def test_a_block_has_autograds_gradients_for_every_group(batched):
    block, sizes = Block(), SIZES["uneven"]
    inputs = torch.randn(2 * sum(sizes), 4, 5, 5)
    seeds = torch.randn_like(block(inputs))
    grouping = Grouping(sizes, torch.device("cpu"), torch.float64, places=8, slots=6, batched=batched)
    terms, parameters = watched(block, inputs, grouping, seeds)
    gradients = by_autograd_by_group(block, inputs, seeds, sizes, parameters)
    norms = torch.tensor([sum(part.double().square().sum() for part in gradient) for gradient in gradients])
    torch.testing.assert_close(sum(term.squares for term in terms), norms, rtol=2e-5, atol=1e-8)
    assert len(terms) == len(parameters)
