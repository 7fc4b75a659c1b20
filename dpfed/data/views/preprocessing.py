"""Describes the preprocessing of images that an image tower expects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preprocessing:
    """Resizing and normalisation of a model's input images.

    Attributes:
        mean: Mean of each channel, which is subtracted from pixels in [0, 1].
        std: Standard deviation of each channel, by which the differences are divided.
        resize: Method that makes an image square: ``crop``, ``squash`` or ``pad``, see `dpfed.data.resizing.square`.
        interpolation: Interpolation, ``bicubic`` or ``bilinear``.
    """

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    resize: str = "crop"
    interpolation: str = "bicubic"


def is_three(value: Any, least: float = -math.inf, kinds: tuple[type, ...] = (int, float)) -> bool:
    """Returns whether a value is a list or tuple of three finite numbers of these kinds, all above `least`."""
    three: list[Any] = list(value) if isinstance(value, list | tuple) and len(value) == 3 else [None]
    return all(type(number) in kinds and least < number < math.inf for number in three)
