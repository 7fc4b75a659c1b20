"""Products that see no place: a record's numbers have the same bits wherever it stands in a pass."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpfed.bounding import places
from dpfed.bounding.engines.batch_invariance import DependsOnOthers
from dpfed.bounding.places import Watched, aligned, same_at_all_places
from dpfed.config import ObjectiveConfig
from dpfed.models.building import build_model
from tests.bounding.engines.cancelling import MODELS, moved_by_a_stranger

GENERATOR = torch.Generator().manual_seed(0)


def at_every_index(product, *shapes):
    """What a product gives for the same matrices at every index of a batch, among others."""
    one = [torch.randn(*shape, generator=GENERATOR) for shape in shapes]
    products = []
    for count in (8, 20):
        for index in range(count):
            batch = [torch.randn(count, *shape, generator=GENERATOR) for shape in shapes]
            for whole, matrix in zip(batch, one, strict=True):
                whole[index] = matrix
            products.append(product(*batch)[index].clone())
    return products


PRODUCTS = {
    "bmm 11x11x5": (torch.bmm, (11, 11), (11, 5)),
    "bmm 9x9x5": (torch.bmm, (9, 9), (9, 5)),
    "bmm 13x13x7": (torch.bmm, (13, 13), (13, 7)),
    "bmm 5x11x11": (torch.bmm, (5, 11), (11, 11)),
    "bmm 2x24x11": (torch.bmm, (2, 24), (24, 11)),
    "attention": (F.scaled_dot_product_attention, (1, 9, 5), (1, 9, 5), (1, 9, 5)),
    "attention of 11": (F.scaled_dot_product_attention, (1, 5, 11), (1, 5, 11), (1, 5, 11)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_matrix_has_the_same_product_at_every_index(name):
    product, *shapes = PRODUCTS[name]
    with same_at_all_places():
        first, *others = at_every_index(product, *shapes)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("columns", [1, 2, 4, 5, 8, 10, 13])
def test_a_row_has_the_same_product_at_every_place(columns):
    weight, bias = torch.randn(columns, 24, generator=GENERATOR), torch.randn(columns, generator=GENERATOR)
    with same_at_all_places():
        for product in (lambda rows: F.linear(rows, weight, bias), lambda rows: rows @ weight.T):
            products = [out for out in at_every_index(product, (5, 24))[:8]]
            assert all(torch.equal(products[0], other) for other in products)


@pytest.mark.parametrize("name", [*PRODUCTS, "linear"])
def test_what_is_computed_is_the_product(name):
    product, *shapes = PRODUCTS.get(name, (lambda rows: F.linear(rows, torch.ones(5, 7), torch.arange(5.0)), (3, 7)))
    given = [torch.randn(6, *shape, generator=GENERATOR).requires_grad_() for shape in shapes]
    expected = product(*given)
    slopes = torch.autograd.grad(expected.square().sum(), given)
    with same_at_all_places():
        result = product(*given)
        found_slopes = torch.autograd.grad(result.square().sum(), given)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(found_slopes, slopes, rtol=1e-4, atol=1e-4)


def test_rows_of_a_gram_matrix_begin_at_a_line_of_the_cache():
    rows = torch.randn(100, 9, generator=GENERATOR)
    grams = [aligned(torch.cat([torch.zeros(offset, 9), rows])[offset:]) for offset in range(5)]
    assert all(gram.data_ptr() % 64 == 0 and torch.equal(gram @ gram.T, grams[0] @ grams[0].T) for gram in grams)


class Odd(nn.Module):
    """An image encoder in front of which each image is added a product of 11 x 11 and 11 x 5 of its own pixels."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, views):
        image = views["image"]
        grey = image.mean(2).flatten(0, 1)
        product = torch.bmm(grey[:, :11, :11], grey[:, :11, :5]).view(*image.shape[:2], 1, 11, 5)
        return self.model({**views, "image": image + F.pad(product, (0, image.shape[-1] - 5, 0, image.shape[-2] - 11))})

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)


def moved():
    torch.manual_seed(0)
    return moved_by_a_stranger(
        "layerwise", Odd(build_model(MODELS["cnn"], ObjectiveConfig())), "noise", 0.05, torch.Generator().manual_seed(3)
    )


@pytest.mark.long
def test_a_stranger_moves_nobody_in_a_model_that_needs_it():
    assert moved() == 0


@pytest.mark.usefixtures("asked_each_time")
def test_without_it_the_check_of_bits_sees_the_model(monkeypatch):
    """Sabotage: the model is taken for one that needs nothing."""
    products = at_every_index(torch.bmm, (11, 11), (11, 5))
    if all(torch.equal(products[0], product) for product in products):
        pytest.skip("this processor computes such products alike at every index of a batch")
    monkeypatch.setattr(places, "_RULES", {})
    with pytest.raises(DependsOnOthers, match="engine-not-alike"):
        moved()


def test_a_plain_model_is_left_as_it_is():
    with Watched() as watched:
        torch.bmm(torch.randn(4, 16, 8), torch.randn(4, 8, 16))
        F.linear(torch.randn(4, 8), torch.randn(16, 8))
    assert not watched.by_place
    tokens = torch.randint(0, 50, (4, 7))
    with Watched(tokens) as watched:
        F.embedding(tokens, torch.randn(50, 8))
        torch.bmm(torch.randn(4, 11, 11), torch.randn(4, 11, 5))
    assert watched.by_place and watched.vocabulary == 50
