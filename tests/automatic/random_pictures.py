"""Folders of random pictures, a folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

_SIZE = 16  # of the pictures, pixels


def pictures(folder: Path, seed: int, count: int = 120, classes: Sequence[str] = ("cat", "dog")) -> Path:
    """Writes pictures of noise, and returns their folder.

    Args:
        folder: to make.
        seed: of the noise.
        count: of pictures.
        classes: names of the folders, in turn.
    """
    generator = np.random.default_rng(seed)
    for number in range(count):
        place = folder / classes[number % len(classes)]
        place.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (_SIZE, _SIZE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return folder
