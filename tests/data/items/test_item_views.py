"""Views of the user's own: functions of an image and of what the record draws, wherever they are made; culprits are refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from dpfed import Records, UserError, Views
from dpfed.data.items.loading import Request
from dpfed.data.items.views import ItemViews, simclr_transform
from dpfed.privacy.randomness import Randomness
from tests.own_parts import SIDE, Pictures, augment, picture

SECRET = Randomness.from_seed(4)


def views_of(transform, items=None, workers=0, **options) -> ItemViews:
    items = Pictures(24) if items is None else items
    return ItemViews.of(Records(items, workers=workers), Views(transform, **options), 2)


def made(views: ItemViews, rows, step: int = 3):
    return views.maker(views.records)(np.array(rows), SECRET, step, torch.device("cpu"))["image"]


@pytest.fixture(scope="module")
def views() -> ItemViews:
    return views_of(augment())


def test_a_view_does_not_depend_on_others_or_on_order(views):
    together = made(views, range(24))
    assert together.shape == (24, 2, 3, SIDE, SIDE) and together.dtype == torch.float32
    rows = list(range(24))
    random.Random(0).shuffle(rows)
    assert torch.equal(made(views, rows), together[rows])
    assert torch.equal(made(views, [7]), together[7:8])


def test_views_differ_by_step_record_and_view(views):
    one, other = made(views, [1, 2], step=1), made(views, [1, 2], step=2)
    assert not torch.equal(one, other) and not torch.equal(one[:, 0], one[:, 1])


def test_a_view_follows_the_key_and_not_the_place():
    items = [picture(n) for n in range(20)]
    first, second = views_of(augment(), items), views_of(augment(), items[::-1])
    assert torch.equal(made(first, [4]), made(second, [15]))


def test_processes_make_the_same_views(views):
    there = views_of(augment(), workers=2)
    asked = [np.arange(10), np.arange(10, 24)]
    maker = there.maker(there.records)
    maker.prefetch(asked, SECRET, 3, torch.device("cpu"))
    for rows in asked:
        assert torch.equal(maker(rows, SECRET, 3, torch.device("cpu"))["image"], made(views, rows))
    assert torch.equal(made(there, [3, 9]), made(views, [3, 9]))  # what was not announced
    there.loader.close()


def test_making_views_moves_no_generator_of_this_process(views):
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    made(views, [1, 2, 3])
    assert torch.equal(before[0], torch.get_rng_state()) and random.getstate() == before[2]
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


def test_numpy_and_python_generators_are_seeded_too():
    def noisy(image):
        pixels = v2.functional.to_dtype(v2.functional.to_image(image), torch.float32, scale=True)
        return pixels * random.random() + float(np.random.rand())  # noqa: NPY002, S311

    source = views_of(noisy)
    assert torch.equal(made(source, [2, 5]), made(source, [5, 2]).flip(0))


def test_a_transform_may_give_all_views_at_once():
    one = augment()
    source = views_of(lambda image: [one(image), one(image), one(image)])
    assert source.count == 3 and source.draws == 1
    assert torch.equal(made(source, [1, 8])[1:], made(source, [8]))


@pytest.mark.parametrize(("channels", "kind"), [(1, torch.uint8), (5, torch.uint8), (4, torch.uint16), (2, torch.float32)])
def test_tensors_of_any_channels_make_views(channels, kind):
    items = [(torch.rand(channels, 10, 14) * 200).to(kind) for _ in range(8)]
    crop = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.RandomCrop((8, 6))])
    source = views_of(crop, items)
    assert source.shape == (channels, 8, 6) and source.read(source.records, np.arange(3)).shape == (3, channels, 8, 6)


def test_plain_images_have_the_normalisation_of_the_transform():
    normal = v2.Normalize([0.5] * 3, [0.25] * 3)
    source = views_of(v2.Compose([*augment().transforms, normal]), [picture(2)] * 4)
    wanted = v2.functional.to_dtype(v2.functional.to_image(picture(2)), torch.float32, scale=True)
    assert torch.allclose(source.read(source.records, np.array([0]))[0], normal(wanted))


def test_grey_pictures_make_colour_views_by_default():
    source = views_of(simclr_transform(SIDE), [picture(n).convert("L") for n in range(6)])
    assert source.shape == (3, SIDE, SIDE)


class Counts:
    """Every third view is another one."""

    def __init__(self) -> None:
        self.calls, self.one = 0, augment()

    def __call__(self, image):
        self.calls += 1
        return self.one(image) + float(self.calls % 3 == 0)


class TakesTurns(Counts):
    """Every second view is another one, and an image gets two views."""

    def __call__(self, image):
        self.calls += 1
        return self.one(image) * (1 + self.calls % 2)


class OwnGenerator:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, image):
        return augment()(image) + torch.rand(1, generator=self.generator)


class MixesUp:
    """MixUp with the image before."""

    def __init__(self) -> None:
        self.last = torch.zeros(3, SIDE, SIDE)

    def __call__(self, image):
        view = augment()(image)
        mixed, self.last = 0.8 * view + 0.2 * self.last, view
        return mixed


@pytest.mark.parametrize("culprit", [Counts, TakesTurns, OwnGenerator, MixesUp])
def test_a_transform_that_remembers_or_mixes_is_refused(culprit):
    with pytest.raises(UserError, match="views-unsteady"):
        views_of(culprit())


def test_a_transform_that_differs_by_process_is_refused():
    import os

    here = os.getpid()
    with pytest.raises(UserError, match="in another process"):
        views_of(lambda image: augment()(image) + float(os.getpid() != here))


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda image: image, "the transform gave an? Image, expected a tensor"),
        (lambda image: v2.functional.to_image(image), "of uint8, expected a tensor"),
        (lambda image: None, "the transform gave None"),
        (lambda image: torch.full((3, 4, 4), torch.inf), "not finite"),
        (lambda image: 1 / 0, "the transform failed on an image .*ZeroDivisionError"),
        (lambda image: torch.zeros(3, 4, 4 + image.size[0] % 2 + random.randrange(2)), "shape"),
        (lambda image: [], "the transform gave no view"),
    ],
)
def test_what_is_no_view_is_said(transform, said):
    with pytest.raises(UserError, match=said):
        views_of(transform)


def test_other_options_that_are_wrong_are_said():
    for options, said in (({"count": 0}, "count = 1 or more"), ({"plain": 3}, "a callable as plain")):
        with pytest.raises(UserError, match=said):
            Views(augment(), **options)
    with pytest.raises(UserError, match="a callable as transform"):
        Views("crop")
    with pytest.raises(UserError, match="views-plain-random"):
        views_of(augment(), plain=augment())
    with pytest.raises(UserError, match="the plain images for evaluation"):
        views_of(augment(), plain=lambda image: torch.zeros(3, 5, 5))


def test_an_item_without_an_image_is_said():
    with pytest.raises(UserError, match="views-no-image"):
        views_of(augment(), [{"label": 3}] * 20)


def test_an_item_that_breaks_later_is_said_with_its_place():
    items = [picture(n) for n in range(30)]
    source = views_of(augment(), items)
    items[25] = "gone"
    with pytest.raises(UserError, match="item 25 of the records cannot be used"):
        source.loader(Request(np.array([3, 25])))


def test_no_items_are_said():
    with pytest.raises(UserError, match="list has no items.*views-no-items"):
        ItemViews.of(Records([]), Views(augment), 2)
