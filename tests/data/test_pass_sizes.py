"""A pass without gradients holds as many records as fit: 512 small ones, and fewer of larger images."""

import pytest
import torch

from dpfed.data import memory
from dpfed.data.memory import records_without_gradients


@pytest.mark.parametrize(
    ("side", "gigabytes", "records"), [(32, 24, 512), (128, 24, 238), (128, 4, 39), (336, 4, 5), (4096, 1, 1)]
)
def test_larger_images_and_less_memory_make_smaller_passes(monkeypatch, side, gigabytes, records):
    monkeypatch.setattr(memory, "memory_of", lambda device: int(gigabytes * 1e9))
    assert records_without_gradients((3, side, side), torch.device("cpu")) == records
