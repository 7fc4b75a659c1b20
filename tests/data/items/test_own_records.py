"""Records of any data set: keys are functions of the records, items come out alike, and what is broken is said."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image

from dpfed import Records, UserError
from dpfed.data.items.classes import numbered_labels
from dpfed.data.items.item import content_of, image_of
from tests.own_parts import Pictures, picture


def of(items, **options) -> Records:
    return Records(items, workers=0, **options)


def test_keys_do_not_change_with_the_order():
    numbers = list(range(30))
    keys = dict(zip(numbers, of([picture(n) for n in numbers]).keys.tolist(), strict=True))
    random.Random(1).shuffle(numbers)
    assert of([picture(n) for n in numbers]).keys.tolist() == [keys[n] for n in numbers]


def test_a_record_more_or_less_changes_no_other_key():
    all_of_them = of([picture(n) for n in range(20)]).keys.tolist()
    assert of([picture(n) for n in range(20) if n != 7]).keys.tolist() == all_of_them[:7] + all_of_them[8:]


def test_equal_records_are_counted_and_have_keys_of_their_own():
    records = of([picture(1), picture(2), picture(1), picture(1)])
    assert records.equal == 3 and len(set(records.keys.tolist())) == 4
    assert set(of([picture(1), picture(2), picture(1)]).keys) < set(records.keys)


def test_a_unit_that_leaves_changes_no_key_of_another():
    rows = [{"image": picture(n), "who": who} for n, who in ((1, "a"), (1, "b"), (2, "a"), (1, "b"))]
    keys = of(rows, unit="who").keys.tolist()
    assert of([row for row in rows if row["who"] == "b"], unit="who").keys.tolist() == [keys[1], keys[3]]


def test_spaces_around_a_units_name_do_not_count():
    rows = [{"image": picture(n), "who": who} for n, who in enumerate(["a", " a ", 7, "7"])]
    assert len(set(of(rows, unit="who").units.tolist())) == 2
    with pytest.raises(UserError, match="'who' gives a blank string, expected a string or a whole number"):
        of([{"image": picture(0), "who": " "}], unit="who").keys  # noqa: B018


def test_processes_read_what_this_one_reads():
    items = Pictures(150)
    assert np.array_equal(Records(items, workers=2).keys, of(items).keys)


@pytest.mark.parametrize("kind", [torch.uint8, torch.uint16, torch.float32])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_tensors_of_any_channels_are_images(kind, channels):
    images = [torch.full((channels, 4, 6), n).to(kind) for n in range(4)]
    assert len(set(of(images).keys.tolist())) == 4


def test_an_array_and_its_picture_are_the_same_record():
    pixels = np.asarray(picture(3))
    assert content_of(image_of(pixels)) == content_of(picture(3))


@pytest.mark.parametrize("shape", [(5, 7, 3), (28, 28, 1), (16, 16, 4)])
@pytest.mark.parametrize("kind", [np.float32, np.uint8, np.uint16, torch.float32, torch.uint8])
def test_channels_in_the_last_place_are_refused_and_the_advice_works(shape, kind):
    image = torch.zeros(shape, dtype=kind) if isinstance(kind, torch.dtype) else np.zeros(shape, kind)
    if kind is np.uint8 and shape[2] == 3:
        assert image_of(image).size == (7, 5)
        return
    with pytest.raises(UserError, match=r"last axis .*records-item"):
        of([image]).keys  # noqa: B018
    moved = image.permute(2, 0, 1) if isinstance(image, torch.Tensor) else image.transpose(2, 0, 1)
    assert tuple(image_of(moved).shape) == (shape[2], *shape[:2])


@pytest.mark.parametrize("shape", [(3, 7, 3), (1, 5, 4), (4, 2, 1), (5, 7, 6), (12, 1, 500)])
def test_channels_that_may_come_first_are_taken_so(shape):
    assert tuple(image_of(np.zeros(shape, np.float32)).shape) == shape


def test_parts_of_items_are_found_by_column_place_and_function():
    rows = [{"img": picture(n), "words": f"number {n}", "who": f"p{n // 2}", "kind": "ab"[n % 2]} for n in range(6)]
    records = of(rows, caption="words", unit="who", label={"kind": "kind"}, key=lambda row: row["words"])
    assert records.kind == "image-text" and records.captions(np.array([2])) == [["number 2"]]
    assert len(set(records.units.tolist())) == 3 and records.unit_name == "who" and records.training_units == 3
    assert records.labels["kind"].tolist() == [0, 1] * 3 and records.label_names == {"kind": ["a", "b"]}


def test_classes_of_torchvision_are_named():
    records = of(Pictures(4))
    assert records.label_names == {"label": ["dark", "bright"]} and records.labels["label"].tolist() == [0, 1, 0, 1]


def test_held_out_records_stand_behind_the_others():
    records = of(Pictures(6), validation=Pictures(2, 50), test=Pictures(3, 80))
    assert [records.count(split) for split in ("train", "validation", "test")] == [6, 2, 3]
    assert records.split("test").tolist() == [8, 9, 10] and records.held_out == ("validation", "test")


class Shuffles(Pictures):
    def __getitem__(self, place):
        return super().__getitem__(random.randrange(len(self)))


class Augments(Pictures):
    def __getitem__(self, place):
        return torch.rand(3, 4, 4), 0


class Grows(Pictures):
    def __getitem__(self, place):
        self.numbers.append(0)
        return super().__getitem__(place)


@pytest.mark.parametrize("culprit", [Shuffles, Augments, Grows])
def test_a_data_set_whose_items_change_is_refused(culprit):
    with pytest.raises(UserError, match="records-(unsteady|length)"):
        of(culprit(20)).keys  # noqa: B018


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (iter([1]), "expected a data set with len"),
        (None, "got None"),
        ([], "no items"),
        ([picture(0), None], "item 1 of the records cannot be used: it is None"),
        (["text"], "its image is a str"),
        ([torch.zeros(4, 4)], r"expected a shape \(C, H, W\)"),
        ([torch.zeros(3, 4, 4, dtype=torch.int64)], "expected uint8, uint16 or floats"),
        ([torch.zeros(3, 4, 4, dtype=torch.bfloat16)], "of bfloat16, expected .*float16, float32, float64"),
        ([torch.full((3, 4, 4), torch.nan)], "not finite"),
        ([{"picture": picture(0)}], "give the name of the image.s column as image="),
        ([()], "empty tuple"),
    ],
)
def test_items_that_are_no_images_are_said(items, said):
    with pytest.raises(UserError, match=said):
        of(items).keys  # noqa: B018


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "place"}, "the keys are the positions"),
        ({"key": "same"}, "of the keys belong to several records each"),
        ({"key": "missing"}, "it has no 'missing'; it has 'image'"),
        ({"key": "nothing"}, "expected a string or a whole number"),
        ({"caption": "blank"}, "its caption is blank"),
        ({"label": "mixed"}, "has values of int and str"),
        ({"unit": lambda row: 1 / 0}, "ZeroDivisionError"),
    ],
)
def test_parts_that_are_wrong_are_said(options, said):
    rows = [
        {"image": picture(n), "place": n, "same": "x", "nothing": None, "blank": " ", "mixed": ["a", 1][n % 2]}
        for n in range(4)
    ]
    with pytest.raises(UserError, match=said):
        of(rows, **options).keys  # noqa: B018


@pytest.mark.parametrize("options", [{}, {"caption": 1}])
@pytest.mark.parametrize("caption", ["a \ud800 cat", ["a cat", "\udcff"]])
def test_captions_that_cannot_be_written_are_said(caption, options):
    with pytest.raises(UserError, match=r"item 0 .*\\ud.*cannot be written as UTF-8.*records-item"):
        of([(picture(0), caption)], **options).keys  # noqa: B018


def test_pixels_tell_records_apart_that_have_equal_bytes():
    one, other = torch.zeros(1, 2, 8, dtype=torch.uint8), torch.zeros(1, 4, 4, dtype=torch.uint8)
    assert content_of(one) != content_of(other) and content_of(Image.new("L", (2, 8))) != content_of(Image.new("L", (8, 2)))


def test_classes_keep_their_names_and_numbers_if_a_record_has_no_label():
    names = ["ant", "bee", "cat", "dog"]
    given = [{"label": number} for number in (3, None, 1, -1)]
    labels, classes = numbered_labels(given, {"label": names})
    assert labels["label"].tolist() == [3, -1, 1, -1] and classes["label"] == names


@pytest.mark.parametrize("workers", [-1, 1.5, "2", True])
def test_a_wrong_number_of_processes_is_said_at_once(workers):
    with pytest.raises(UserError, match="workers, the number of processes"):
        Records(Pictures(3), workers=workers)


def test_records_that_dpfed_opened_are_no_data_set():
    opened = Records(Pictures(3))
    for data in ({"data": opened}, {"data": Pictures(3), "validation": opened}, {"data": Pictures(3), "test": opened}):
        with pytest.raises(UserError, match="got a Records.*records-opened"):
            Records(**data)
