"""The losses of one group: each against its definition as a loop over pairs, and what must hold for both."""

import math

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import normalize

from dpfed.objectives import infonce, siglip

LOSSES = {"infonce": infonce.group_loss, "siglip": siglip.group_loss}
TEMPERATURE, BIAS = torch.tensor(0.2, dtype=torch.float64), torch.tensor(-1.3, dtype=torch.float64)
SHAPES = {
    "pairs": (1, 1),
    "pairs with views": (3, 3),
    "uneven views": (2, 4),
    "images": (2, None),
    "images with views": (4, None),
}


def group(views, texts, size=5, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape):
        return normalize(torch.randn(*shape, 6, dtype=torch.float64, generator=generator), dim=-1)

    return {"image": unit(size, views)} | ({"text": unit(size, texts)} if texts else {})


def sides(z):
    """(anchors, positives, further negatives of the anchors, further negatives of the positives)."""
    if "text" in z:
        return z["image"][:, 0], z["text"][:, 0], z["text"][:, 1:], z["image"][:, 1:]
    return z["image"][:, 0], z["image"][:, 1], z["image"][:, 2:], z["image"][:, 2:]


def siglip_oracle(z, present, temperature, bias):
    """One binary cross-entropy for every decision, written down one at a time."""
    first, second, of_second, of_first = sides(z)
    here = [i for i in range(len(first)) if present[i]]
    if len(here) < 2:
        return torch.zeros((), dtype=torch.float64)

    def no(a, b):
        return -torch.log(1 - torch.sigmoid(a @ b / temperature + bias))

    total = 0
    for i in here:
        for j in here:
            if i == j:
                total = total - torch.log(torch.sigmoid(first[i] @ second[i] / temperature + bias))
                continue
            total = total + no(first[i], second[j])
            total = total + sum(no(first[i], of_second[j, v]) for v in range(of_second.shape[1]))
            total = total + sum(no(second[i], of_first[j, v]) for v in range(of_first.shape[1]))
    return total


def infonce_oracle(z, present, temperature, bias):
    first, second, of_second, of_first = sides(z)
    here = [i for i in range(len(first)) if present[i]]
    total = torch.zeros((), dtype=torch.float64)
    for anchor, other, more in ((first, second, of_second), (second, first, of_first)):
        for i in here:
            right = torch.exp(anchor[i] @ other[i] / temperature)
            wrong = [torch.exp(anchor[i] @ x / temperature) for j in here if j != i for x in (other[j], *more[j])]
            total = total - torch.log(right / (right + sum(wrong)))
    return total


ORACLES = {"siglip": siglip_oracle, "infonce": infonce_oracle}


@pytest.fixture(params=list(ORACLES))
def name(request):
    return request.param


@pytest.fixture(params=list(SHAPES))
def shape(request):
    return SHAPES[request.param]


def leaves(z):
    return {kind: x.clone().requires_grad_() for kind, x in z.items()}


def loss_and_gradients(loss, z, present, temperature=TEMPERATURE, bias=BIAS):
    z, temperature, bias = leaves(z), temperature.clone().requires_grad_(), bias.clone().requires_grad_()
    value = loss(z, present, temperature, bias)
    inputs = [*z.values(), temperature, bias]
    gradients = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True) if value.requires_grad else None
    return value.detach(), gradients or [torch.zeros_like(x) for x in inputs]


@pytest.mark.parametrize("present", [[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 1, 0, 0, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
def test_value_and_gradients_equal_a_loop_over_all_decisions(name, shape, present):
    z, present = group(*shape), torch.tensor(present, dtype=torch.bool)
    value, gradients = loss_and_gradients(LOSSES[name], z, present)
    expected, expected_gradients = loss_and_gradients(ORACLES[name], z, present)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    assert (value > 0.1) == (present.sum() > 1)
    for gradient, right in zip(gradients, expected_gradients, strict=True):
        assert torch.allclose(gradient, right, rtol=1e-8, atol=1e-10)


def test_gradients_equal_finite_differences(name, shape):
    z, present = group(*shape, size=3), torch.tensor([True, True, False])
    kinds = list(z)

    def loss(temperature, bias, *parts):
        return LOSSES[name](dict(zip(kinds, parts, strict=True)), present, temperature, bias)

    assert torch.autograd.gradcheck(loss, [x.clone().requires_grad_() for x in (TEMPERATURE, BIAS, *z.values())])


def test_a_group_of_one_is_exactly_zero_and_has_no_gradient(name, shape):
    z = {kind: x.float() for kind, x in group(*shape, size=4).items()}
    for present in ([False, True, False, False], [False] * 4):
        value, gradients = loss_and_gradients(LOSSES[name], z, torch.tensor(present), torch.tensor(0.01), torch.tensor(-10.0))
        assert value.item() == 0.0
        assert all(torch.equal(part, torch.zeros_like(part)) for part in gradients)


def test_padding_changes_nothing_and_gets_no_gradient(name, shape):
    z = group(*shape)
    value, gradients = loss_and_gradients(LOSSES[name], z, torch.ones(5, dtype=torch.bool))
    padded = {kind: torch.cat([x[:2], torch.full_like(x[:3], 7.0), x[2:]]) for kind, x in z.items()}
    present = torch.tensor([1, 1, 0, 0, 0, 1, 1, 1], dtype=torch.bool)
    same, padded_gradients = loss_and_gradients(LOSSES[name], padded, present)
    assert same.item() == pytest.approx(value.item(), rel=1e-12)
    for gradient, right in zip(padded_gradients[: len(z)], gradients, strict=False):
        assert torch.allclose(gradient[present], right, rtol=1e-10, atol=1e-12)
        assert not gradient[~present].any()


def test_a_record_is_not_pushed_from_its_own_further_views(name):
    """Two records: the gradient of a further view lies in the span of the other record's first views."""
    for views, texts, first_more in ((3, 3, 1), (4, None, 2)):
        z = leaves(group(views, texts, size=2))
        loss = LOSSES[name](z, torch.tensor([True, True]), TEMPERATURE, BIAS)
        [gradient] = torch.autograd.grad(loss, [z["image"]])
        for record in (0, 1):
            strangers = z["text"][1 - record, :1] if texts else z["image"][1 - record, :2]
            span = torch.linalg.qr(strangers.detach().T).Q
            for push in gradient[record, first_more:]:
                assert push.norm() > 1e-3
                assert (push - span @ (span.T @ push)).norm() < 1e-12


@pytest.mark.parametrize("cosine", [-1.0, 1.0])
def test_stays_finite_in_float32_at_the_smallest_temperature(name, cosine):
    one = normalize(torch.ones(1, 6), dim=1)
    z = {"image": one.expand(4, 6)[:, None], "text": cosine * one.expand(4, 6)[:, None]}
    value, gradients = loss_and_gradients(
        LOSSES[name], z, torch.ones(4, dtype=torch.bool), torch.tensor(0.01), torch.tensor(-10.0)
    )
    exact = {"infonce": 8 * math.log(4), "siglip": 12 * 90.0 if cosine > 0 else 4 * 110.0}[name]
    assert value.item() == pytest.approx(exact, rel=1e-5)
    assert all(part.isfinite().all() for part in gradients)


def test_vectorised_gradients_equal_one_group_at_a_time(name, shape):
    groups = [group(*shape, seed=seed) for seed in range(3)]
    stacked = {kind: torch.stack([z[kind] for z in groups]) for kind in groups[0]}
    present = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 1, 0]], dtype=torch.bool)
    together = vmap(grad(LOSSES[name]), in_dims=(0, 0, None, None))(stacked, present, TEMPERATURE, BIAS)
    for index, z in enumerate(groups):
        _, alone = loss_and_gradients(LOSSES[name], z, present[index])
        for kind, right in zip(z, alone, strict=False):
            assert torch.allclose(together[kind][index], right, rtol=1e-9, atol=1e-12)
