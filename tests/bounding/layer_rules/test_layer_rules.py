"""The rule of each kind of layer against plain autograd, group by group."""

import pytest
import torch
from timm.layers import LayerNorm2d, LayerScale, LayerScale2d, StdConv2d
from timm.layers.grn import GlobalResponseNorm
from torch import nn
from torch.nn.utils import parametrize

from dpfed.bounding.layer_rules import convolution, term
from dpfed.bounding.layer_rules.grouping import Grouping, Unsupported
from dpfed.bounding.layer_rules.linear import AdaptedWeight
from dpfed.bounding.layer_rules.recorder import Recorder
from dpfed.bounding.layer_rules.row_sums import side_by_side
from dpfed.bounding.layer_rules.rules import RULES
from dpfed.bounding.layer_rules.term import Target
from dpfed.models.lora import LowRankUpdate
from dpfed.models.norm import FixedBatchNorm

SIZES = {"even": [3, 3, 3], "uneven": [2, 5, 1, 3]}
VIEWS = 2


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(7, 4))

    def forward(self, x):
        return x + self.position[: x.shape[1]]


class ClassToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.projection = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 3))

    def forward(self, x):
        token = self.token.view(1, 1, -1).expand(x.shape[0], -1, -1).to(x.dtype)
        return torch.cat([token, x], dim=1) @ self.projection


class Attention(nn.Module):
    def __init__(self, causal=None, batch_first=True):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        nn.init.normal_(self.attention.in_proj_bias)
        self.batch_first, self.causal = batch_first, causal

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal == "float" else None
        if self.causal == "bool":
            mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        x = x if self.batch_first else x.transpose(0, 1)
        out = self.attention(x, x, x, need_weights=False, attn_mask=mask)[0]
        return out if self.batch_first else out.transpose(0, 1)


def adapted(layer, name, blocks, chosen):
    update = LowRankUpdate(getattr(layer, name), blocks, chosen, rank=2, scale=0.7)
    nn.init.normal_(update.up)
    parametrize.register_parametrization(layer, name, update)
    layer.parametrizations[name].original.requires_grad_(False)
    return layer


def adapted_attention():
    layer = Attention()
    adapted(layer.attention, "in_proj_weight", 3, (0, 2))
    adapted(layer.attention.out_proj, "weight", 1, (0,))
    return layer


def response_norm(channels):
    layer = GlobalResponseNorm(channels)
    nn.init.normal_(layer.weight)
    return layer


def fixed_batch_norm(kind):
    layer = FixedBatchNorm(kind(4))
    for tensor in (layer.weight, layer.bias, layer.running_mean):
        nn.init.normal_(tensor)
    nn.init.uniform_(layer.running_var, 0.5, 2)
    return layer


IMAGE, TOKENS, ROWS = (4, 5, 6), (5, 4), (4,)
LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), ROWS),
    "linear on tokens": (lambda: nn.Linear(4, 3, bias=False), TOKENS),
    "linear, only the bias": (lambda: nn.Linear(4, 3), TOKENS),
    "adapted linear": (lambda: adapted(nn.Linear(4, 3, bias=False), "weight", 1, (0,)), TOKENS),
    "3x3": (lambda: nn.Conv2d(4, 3, 3, padding=1), IMAGE),
    "3x3 to one channel": (lambda: nn.Conv2d(4, 1, 3, padding=1), IMAGE),
    "3x3, stride 2": (lambda: nn.Conv2d(4, 3, 3, stride=2, padding=1, bias=False), IMAGE),
    "3x2, dilated": (lambda: nn.Conv2d(4, 3, (3, 2), padding=(2, 1), dilation=(2, 1)), IMAGE),
    "3x3, without padding": (lambda: nn.Conv2d(4, 3, 3), IMAGE),
    "3x3, stride 2, dilated": (lambda: nn.Conv2d(4, 3, 3, stride=2, padding=2, dilation=2), IMAGE),
    "3x2, strides 3 and 1": (lambda: nn.Conv2d(4, 3, (3, 2), stride=(3, 1), padding=(2, 1)), IMAGE),
    "1x1, stride 2": (lambda: nn.Conv2d(4, 3, 1, stride=2), IMAGE),
    "3x3 on one pixel": (lambda: nn.Conv2d(4, 3, 3, padding=1), (4, 1, 1)),
    "3x3, stride 2, on 2x2": (lambda: nn.Conv2d(4, 3, 3, stride=2, padding=1), (4, 2, 2)),
    "patches": (lambda: nn.Conv2d(4, 3, 5, stride=5), (4, 10, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, padding=1, groups=4), IMAGE),
    "standardised 3x3": (lambda: StdConv2d(4, 3, 3, padding=1, bias=True), IMAGE),
    "standardised, stride 2, in groups": (lambda: StdConv2d(4, 6, 3, stride=2, groups=2), IMAGE),
    "scale of tokens": (lambda: LayerScale(4, init_values=0.5), TOKENS),
    "scale of channels": (lambda: LayerScale2d(4, init_values=0.5), IMAGE),
    "global response norm": (lambda: response_norm(4), (5, 6, 4)),
    "LayerNorm of channels": (lambda: LayerNorm2d(4), IMAGE),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "BatchNorm by fixed statistics": (lambda: fixed_batch_norm(nn.BatchNorm2d), IMAGE),
    "BatchNorm of rows by fixed statistics": (lambda: fixed_batch_norm(nn.BatchNorm1d), ROWS),
    "LayerNorm": (lambda: nn.LayerNorm(4), TOKENS),
    "LayerNorm of rows": (lambda: nn.LayerNorm(4), ROWS),
    "LayerNorm over two dimensions": (lambda: nn.LayerNorm((5, 4)), TOKENS),
    "positions": (Positions, TOKENS),
    "class token and projection": (ClassToken, TOKENS),
    "attention": (Attention, TOKENS),
    "attention, tokens first": (lambda: Attention(batch_first=False), TOKENS),
    "causal attention": (lambda: Attention("float"), TOKENS),
    "masked attention": (lambda: Attention("bool"), TOKENS),
    "adapted attention": (adapted_attention, TOKENS),
    "embedding": (lambda: nn.Embedding(6, 4), None),
    "embedding with padding": (lambda: nn.Embedding(6, 4, padding_idx=2), None),
}


def watched(layer, inputs, grouping, seeds):
    """The terms of the layer when the loss is the product of outputs and seeds, and the parameters that they are of."""
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    number = {id(parameter): index for index, parameter in enumerate(parameters)}
    sources = [(parameter, Target(index)) for index, parameter in enumerate(parameters)]
    with parametrize.cached():
        for module in layer.modules():
            for name in getattr(module, "parametrizations", {}):
                update = module.parametrizations[name][0]
                with torch.no_grad():
                    merged = getattr(module, name)
                up, down = Target(number[id(update.up)]), Target(number[id(update.down)])
                sources.append((merged, AdaptedWeight(update, up, down)))
        with Recorder(RULES, sources, grouping) as recorder:
            output = layer(inputs)
    (output * seeds).sum().backward()
    assert all(parameter.grad is None for parameter in parameters)
    return recorder.terms, parameters


def weighted(terms, factors, parameters):
    parts = [torch.zeros_like(parameter) for parameter in parameters]
    with torch.no_grad():
        for term in terms:
            term.add_weighted(factors, parts)
    return parts


def by_autograd(layer, inputs, seeds, sizes, parameters):
    """``(G,)`` lists of gradients, each from a backward pass of its own."""
    gradients, first = [], 0
    for size in sizes:
        rows = slice(first * VIEWS, (first + size) * VIEWS)
        gradients.append(torch.autograd.grad((layer(inputs[rows]) * seeds[rows]).sum(), parameters))
        first += size
    return gradients


def case(name, sizes):
    make, shape = LAYERS[name]
    layer = make()
    if name == "linear, only the bias":
        layer.weight.requires_grad_(False)
    rows = sum(sizes) * VIEWS
    inputs = torch.randint(6, (rows, 5)) if shape is None else torch.randn(rows, *shape)
    return layer, inputs, torch.randn_like(layer(inputs)), Grouping(sizes, torch.device("cpu"), torch.float64)


WAYS = ["gram", "written down"]


def go(way, monkeypatch):
    """Makes layers measure their groups' gradients in one way."""
    for module in (term, convolution):
        monkeypatch.setattr(module, "gram_is_cheaper", lambda *_: way == "gram")


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    go(request.param, monkeypatch)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", LAYERS)
def test_norms_and_weighted_sums_are_those_of_autograd(name, sizes):
    layer, inputs, seeds, grouping = case(name, sizes)
    terms, parameters = watched(layer, inputs, grouping, seeds)
    gradients = by_autograd(layer, inputs, seeds, sizes, parameters)
    assert {t.target.parameter for t in terms} == set(range(len(parameters)))
    norms = torch.tensor([sum(part.double().square().sum() for part in gradient) for gradient in gradients])
    factors = torch.rand(len(sizes))
    for some in (terms, side_by_side(terms)):
        torch.testing.assert_close(sum(t.squares for t in some), norms, rtol=2e-5, atol=1e-8)
        parts = weighted(some, factors, parameters)
        for index, part in enumerate(parts):
            expected = sum(factor * gradient[index] for factor, gradient in zip(factors, gradients, strict=True))
            torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", LAYERS)
def test_groups_that_are_not_finite_leave_the_others_as_they_are(name):
    layer, inputs, seeds, grouping = case(name, SIZES["uneven"])
    factors, bad = torch.tensor([0.5, 0.0, 0.25, 1.0]), torch.tensor([False, True, False, False])
    rows = slice(2 * VIEWS, 7 * VIEWS)
    sums = []
    for poison in (0.0, float("nan"), float("inf")):
        if inputs.is_floating_point():
            inputs[rows] = poison
        seeds[rows] = poison
        terms, parameters = watched(layer, inputs, grouping, seeds)
        assert torch.isfinite(torch.stack([t.squares for t in terms])[:, ~bad]).all()
        parts = weighted(terms, factors, parameters)
        sums.append(torch.cat([part.flatten() for part in parts]))
    assert sums[0].any()
    torch.testing.assert_close(sums[1], sums[0])
    torch.testing.assert_close(sums[2], sums[0])


def test_rounding_where_rows_cancel_is_within_the_slack():
    """Then the norm of the sum is small beside the rows', and the rounding of the Gram matrices large beside it."""
    for scale in (1e-1, 1e-2, 1e-3, 1e-4):
        g = torch.randn(64, 32) * scale
        g[1::2] -= 10
        g[::2] += 10
        a = torch.ones(64, 600) + scale * torch.randn(64, 600)
        squares, slack = term.gram_squares(a, g, torch.float64)
        into = torch.zeros(32, 600).addmm_(g.T, a)
        for exact in (g.T.double() @ a.double(), into):
            assert abs(exact.double().square().sum() - squares) <= slack


def test_each_record_may_have_several_rows():
    grouping = Grouping([1, 2], torch.device("cpu"), torch.float64)
    assert [part.item() for part in grouping.sums(torch.arange(6.0)[:, None])] == [1, 14]
    with pytest.raises(Unsupported, match="layer-rows-uneven"):
        grouping.sums(torch.zeros(7, 1))


class Odd(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.weight, self.use = nn.Parameter(torch.randn(4, 4)), use

    def forward(self, x):
        return self.use(x, self.weight)


def overwritten(x, weight):
    x = x + 0
    y = nn.functional.linear(x, weight)
    x.add_(1)
    return y


def kernel_of(weight):
    return nn.functional.batch_norm(weight.reshape(1, 4, -1), None, None, training=True).reshape_as(weight)


ODD = {
    "computed weight, trained shift": lambda x, weight: nn.functional.linear(x, (x @ weight)[:4], weight[0]),
    "product of parameters": lambda x, weight: x * (weight[0] * weight[1]),
    "normalised by records": lambda x, weight: nn.functional.batch_norm(x * weight[0, 0], None, None, weight[0], training=True),
    "standardised, in a linear layer": lambda x, weight: nn.functional.linear(x, kernel_of(weight)),
    "standardised": lambda x, weight: nn.functional.linear(x, weight - weight.mean()),
    "of a view": lambda x, weight: nn.functional.linear(x, weight[:3].exp()),
    "from the left": lambda x, weight: weight @ x[:4],
    "looked up by number": lambda x, weight: x + weight[torch.tensor([0])],
    "overwritten input": overwritten,
}


@pytest.mark.parametrize("use", ODD.values(), ids=ODD)
def test_what_has_no_rule_is_refused(use):
    grouping = Grouping([2, 3], torch.device("cpu"), torch.float64)
    with pytest.raises(Unsupported, match=r"\[layer-"):
        watched(Odd(use), torch.randn(10, 4), grouping, torch.randn(()))
