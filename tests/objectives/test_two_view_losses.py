"""Barlow Twins of one group: against its formula written as loops, and what must hold beside."""

import math

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import normalize

from dpfed.config import ObjectiveConfig

CASES = [("barlow_twins", kind) for kind in ("image", "pair")]
NAMES = {"image": ("image",), "pair": ("image", "text")}
EVERYBODY = torch.ones(5, dtype=torch.bool)
SUBSETS = [[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 1, 0, 0, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]


def group(kind, seed=0, size=5):
    generator = torch.Generator().manual_seed(seed)
    views = {"image": 1, "text": 1} if kind == "pair" else dict.fromkeys(NAMES[kind], 2)
    z = {name: torch.randn(size, count, 3, dtype=torch.float64, generator=generator) for name, count in views.items()}
    return {name: normalize(x, dim=2) for name, x in z.items()} if kind == "target" else z


def two(z, present):
    """The two views of the records that are present, as lists of lists of scalars."""
    here = [i for i in range(len(present)) if present[i]]
    first, second = (z["image"], z["text"]) if "text" in z else (z["image"][:, :1], z["image"][:, 1:])
    return [list(first[i, 0]) for i in here], [list(second[i, 0]) for i in here]


def mean(values):
    return sum(values) / len(values)


def barlow_twins(z, present, redundancy=5e-3):
    a, b = two(z, present)
    n, dimensions, loss = len(a), range(len(z["image"][0, 0])), 0

    def score(view, i, d):
        column = [row[d] for row in view]
        return (view[i][d] - mean(column)) / torch.sqrt(mean([(x - mean(column)) ** 2 for x in column]) + 1e-5)

    for d in dimensions:
        for e in dimensions:
            correlation = mean([score(a, i, d) * score(b, i, e) for i in range(n)])
            loss = loss + ((1 - correlation) ** 2 if d == e else redundancy * correlation**2)
    return n * loss


OPTIONS = {"redundancy": 0.3}


def loss_named(name, **options):
    """As a configuration names it, of two views that are not contrasted."""
    return lambda z, present: ObjectiveConfig(name=name, **options).group_loss()(z, present, None, None)


def where_it_belongs(loss):
    """On the sphere where the loss expects it: there a distance and a cosine say the same, and have the same gradients."""

    def of_views(z, present, **options):
        return loss({name: normalize(x, dim=2) for name, x in z.items()} if "target" in z else z, present, **options)

    return of_views


def value_and_gradients(loss, z, present, **options):
    z = {name: x.clone().requires_grad_() for name, x in z.items()}
    value = where_it_belongs(loss)(z, present, **options)
    if not (isinstance(value, torch.Tensor) and value.requires_grad):
        return torch.as_tensor(value, dtype=torch.float64), {name: torch.zeros_like(x) for name, x in z.items()}
    gradients = torch.autograd.grad(value, list(z.values()), allow_unused=True, materialize_grads=True)
    return value.detach(), dict(zip(z, gradients, strict=True))


@pytest.mark.parametrize("chosen", [False, True], ids=["usual weights", "other weights"])
@pytest.mark.parametrize("present", SUBSETS, ids=str)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_value_and_gradients_equal_the_formula(name, kind, present, chosen):
    z, options = group(kind), OPTIONS if chosen else {}
    value, gradients = value_and_gradients(loss_named(name, **options), z, torch.tensor(present, dtype=torch.bool))
    if sum(present) < 2:
        assert value == 0 and not any(gradient.any() for gradient in gradients.values())
        return
    expected, right = value_and_gradients(barlow_twins, z, present, **options)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    assert (value > 0.05) == (sum(present) > 0)
    for view, gradient in gradients.items():
        assert torch.allclose(gradient, right[view], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_padding_changes_nothing_and_gets_no_gradient(name, kind):
    z = group(kind)
    value, gradients = value_and_gradients(loss_named(name), z, EVERYBODY)
    padded = {view: torch.cat([x[:2], torch.full_like(x[:3], 1e3), x[2:]]) for view, x in z.items()}
    present = torch.tensor([1, 1, 0, 0, 0, 1, 1, 1], dtype=torch.bool)
    same, padded_gradients = value_and_gradients(loss_named(name), padded, present)
    assert same.item() == pytest.approx(value.item(), rel=1e-12)
    for view, gradient in gradients.items():
        assert torch.allclose(padded_gradients[view][present], gradient, rtol=1e-10, atol=1e-12)
        assert not padded_gradients[view][~present].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_gradients_are_finite_where_records_or_columns_are_alike(name, kind, dtype):
    z = {view: x.to(dtype) for view, x in group(kind).items()}
    alike = {view: x[:1].expand_as(x) for view, x in z.items()}
    flat = {view: torch.cat([torch.zeros_like(x[..., :1]), x[..., 1:]], dim=2) for view, x in z.items()}
    for case in (alike, flat, {view: torch.zeros_like(x) for view, x in z.items()}):
        value, gradients = value_and_gradients(loss_named(name), case, EVERYBODY)
        assert math.isfinite(value.item())
        assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_vectorised_gradients_equal_one_group_at_a_time(name, kind):
    groups = [group(kind, seed) for seed in range(4)]
    stacked = {view: torch.stack([z[view] for z in groups]) for view in groups[0]}
    present = torch.tensor([SUBSETS[0], SUBSETS[1], SUBSETS[3], SUBSETS[4]], dtype=torch.bool)
    together = vmap(grad(where_it_belongs(loss_named(name))))(stacked, present)
    for index, z in enumerate(groups):
        _, alone = value_and_gradients(loss_named(name), z, present[index])
        for view, gradient in alone.items():
            assert torch.allclose(together[view][index], gradient, rtol=1e-9, atol=1e-12)
