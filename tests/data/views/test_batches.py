"""Views of a step's records: shapes, and that every record's views are its own business."""

import contextlib

import numpy as np
import pytest
import torch

from dpfed.config import TextViewsConfig, ViewsConfig
from dpfed.data.views.batches import ViewMaker
from dpfed.data.views.images import ImageViews
from dpfed.data.views.texts import TextViews
from dpfed.data.views.words import WordTokenizer
from dpfed.privacy.randomness import Randomness
from tests.host_waits import META, NoKernel, host_waits  # noqa: F401

TEXT_VIEWS = TextViews(TextViewsConfig(sentence_swap=0.5, word_swap=0.5, word_delete=0.2))
SECRET = Randomness.from_seed(5)
CPU = torch.device("cpu")


class Store:
    """Records in memory; a record is its number, whatever row it has."""

    def __init__(self, numbers, captions=3):
        self.numbers = np.array(numbers)
        self.keys = np.random.default_rng(1).permutation(1000)[self.numbers].astype(np.uint64)
        self.count = captions

    def read(self, indices):
        generators = [torch.Generator().manual_seed(int(number)) for number in self.numbers[indices]]
        images = [torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8, generator=g) for g in generators]
        return torch.stack(images) if images else torch.zeros(0, 3, 16, 16, dtype=torch.uint8)

    def captions(self, indices):
        return [
            [f"c{n} w{number} one two three. Four five six." for n in range(self.count)] for number in self.numbers[indices]
        ]


def maker(store, text_views=TEXT_VIEWS, count=3, tokenizer=None, views=None):
    images = ImageViews(views or ViewsConfig(crop_scale=(0.3, 1.0), flip=0.5, jitter=0.8))
    return ViewMaker(store, store.read, images, count, tokenizer or WordTokenizer(4096, 10), text_views)


def test_shapes():
    views = maker(Store(range(7)))(np.array([4, 0, 6]), SECRET, 0, CPU)
    assert views["image"].shape == (3, 3, 3, 16, 16) and views["image"].dtype == torch.float32
    assert views["text"].shape == (3, 3, 10) and views["text"].dtype == torch.int64
    empty = maker(Store(range(7)))(np.array([], np.int64), SECRET, 0, CPU)
    assert empty["image"].shape == (0, 3, 3, 16, 16) and empty["text"].shape == (0, 3, 10)


@pytest.mark.parametrize("kernels", [False, True])
def test_the_host_waits_for_nothing_while_a_gpu_makes_views(kernels, host_waits, monkeypatch):  # noqa: F811
    if kernels:
        pytest.importorskip("triton")
        monkeypatch.setattr("dpfed.data.views.images._on_gpu", lambda images: True)
        monkeypatch.setattr(ImageViews, "has_kernels", True)
        for name in ("_make", "_blur"):
            monkeypatch.setattr(f"dpfed.data.views.fused.{name}", NoKernel())
    make = maker(Store(range(7)), views=ViewsConfig(crop_scale=(0.3, 1.0), flip=0.5, jitter=0.8, grayscale=0.2, blur=0.5))
    for block in (contextlib.nullcontext, host_waits):  # constants are brought once
        with block() as waits:
            made = make(np.arange(7), SECRET, 0, META)
    assert waits == [] and made["image"].device == made["text"].device == META


@pytest.mark.parametrize("text_views", [TEXT_VIEWS, TextViews(TextViewsConfig()), None])
def test_removing_or_moving_records_changes_no_others_views(text_views):
    """The independence on which the guarantee rests: everything is drawn from the record's own key."""
    whole = maker(Store(range(12)), text_views)(np.arange(12), SECRET, 3, CPU)
    left = [11, 2, 5, 7, 0]
    fewer = maker(Store(left), text_views)(np.arange(5), SECRET, 3, CPU)
    assert torch.equal(whole["text"][left], fewer["text"])
    assert torch.allclose(whole["image"][left], fewer["image"], atol=1e-6)


def test_all_text_views_differ_and_show_one_caption():
    seen = []

    def tokenizer(texts):
        seen.append(texts)
        return torch.zeros(len(texts), 4, dtype=torch.int64)

    store = Store(range(200))
    maker(store, tokenizer=tokenizer)(np.arange(200), SECRET, 0, CPU)
    [texts] = seen  # in one call
    for number, views in enumerate(np.array(texts).reshape(200, 3)):
        sources = store.captions([number])[0]
        chosen = [s for s in sources if all(set(view.split()) <= set(s.split()) for view in views)]
        assert chosen  # all three are views of one caption
    by_view = np.array(texts).reshape(200, 3).T
    assert max(np.mean([t in store.captions([i])[0] for i, t in enumerate(column)]) for column in by_view) < 0.1
    assert np.mean(by_view[0] != by_view[1]) > 0.9


def test_captions_are_chosen_alike_and_anew_in_every_step():
    captions = []

    def tokenizer(texts):
        captions.append([text.split()[0] for text in texts])
        return torch.zeros(len(texts), 4, dtype=torch.int64)

    make = maker(Store(range(600)), text_views=None, tokenizer=tokenizer)
    for step in (0, 1):
        make(np.arange(600), SECRET, step, CPU)
    counts = [captions[0].count(f"c{n}") for n in range(3)]
    assert sum(counts) == 600 and min(counts) > 150
    assert 250 < sum(a != b for a, b in zip(*captions, strict=True)) < 550


def test_without_text_views_the_caption_is_the_only_text():
    store = Store(range(5), captions=1)
    expected = WordTokenizer(4096, 10)([captions[0] for captions in store.captions(np.arange(5))])
    for text_views in (None, TextViews(TextViewsConfig())):
        views = maker(store, text_views)(np.arange(5), SECRET, 0, CPU)
        assert torch.equal(views["text"], expected[:, None]) and views["image"].shape[1] == 3


def test_views_repeat_within_a_step_and_change_between_steps():
    make = maker(Store(range(6)))
    first, again, later = (make(np.arange(6), SECRET, step, CPU) for step in (0, 0, 1))
    other = make(np.arange(6), Randomness.from_seed(6), 0, CPU)
    for kind in ("image", "text"):
        assert torch.equal(first[kind], again[kind])
        assert not torch.equal(first[kind], later[kind]) and not torch.equal(first[kind], other[kind])


def test_a_records_image_views_are_drawn_independently():
    store, rows = Store(range(400)), np.arange(400)
    views = maker(store, views=ViewsConfig(flip=0.5))(rows, SECRET, 0, CPU)["image"]
    plain = ImageViews(ViewsConfig()).plain(store.read(rows))
    flipped = torch.stack([(view != plain).flatten(1).any(1) for view in views.unbind(1)])
    assert torch.equal(views[flipped.T], plain[:, None].expand_as(views)[flipped.T].flip(-1))
    assert all(150 < count < 250 for count in flipped.sum(1).tolist())
    assert all(150 < (flipped[a] == flipped[b]).sum() < 250 for a, b in ((0, 1), (0, 2), (1, 2)))
