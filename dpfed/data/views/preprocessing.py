"""Describes the preprocessing of images that an image tower expects."""

from __future__ import annotations

from dataclasses import dataclass


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
