"""CIFAR-10 in small: as many classes, few images."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def cifar(tmp_path_factory) -> Path:
    """200 training and 50 test images of ten classes, each of a colour of its own, as Parquet."""
    folder = tmp_path_factory.mktemp("cifar10")
    draws = np.random.default_rng(0)
    for split, count in (("train", 200), ("test", 50)):
        images, labels = [], [number % 10 for number in range(count)]
        for label in labels:
            pixels = np.full((32, 32, 3), (label * 25, 255 - label * 25, 128)) + draws.integers(0, 40, (32, 32, 3))
            with io.BytesIO() as file:
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "PNG")
                images.append({"bytes": file.getvalue(), "path": None})
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        pq.write_table(pa.table({"image": pa.array(images, kind), "label": pa.array(labels)}), folder / f"{split}.parquet")
    return folder
