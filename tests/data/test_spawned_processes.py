"""Where processes start anew, what cannot be pickled is read and made in this process, with a note; the views are the same."""

import multiprocessing
import warnings

import numpy as np
import pytest
import torch

import dpfed
from dpfed.data.items.item import Parts
from dpfed.data.items.loading import ItemLoader, Recipe, Request
from dpfed.errors import Notice
from tests.own_parts import Pictures, augment


@pytest.fixture
def spawn():
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


def views(transform, workers):
    loader = ItemLoader(Recipe(Pictures(20), Parts(), transform, augment()), workers)
    request = Request(np.arange(20), np.arange(40, dtype=np.uint64).reshape(20, 2))
    made = loader(request)
    loader.close()
    return made


@pytest.mark.long
def test_a_lambda_is_called_here_and_a_function_elsewhere(spawn):
    wanted = views(augment(), 0)
    with pytest.warns(Notice, match="by itself, which takes longer"):
        assert torch.equal(views(lambda image: augment()(image), 2), wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(views(augment(), 1), wanted)


def test_records_with_a_lambda_are_read_here(spawn):
    rows = [(image, number) for number, (image, _) in enumerate(Pictures(90))]
    with pytest.warns(Notice, match="this process reads the records"):
        records = dpfed.Records(rows, label=lambda row: row[1] % 2, workers=2)
        assert len(records.keys) == 90
    again = dpfed.Records(rows, label=lambda row: row[1] % 2, workers=0)
    assert np.array_equal(records.keys, again.keys)
