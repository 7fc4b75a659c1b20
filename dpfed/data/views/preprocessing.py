"""The preprocessing that an image tower expects."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preprocessing:
    """Resizing and normalisation of a model's input images.

    Attributes:
        mean: Mean of each channel, of pixels in [0, 1].
        std: Standard deviation of each channel.
        resize: Method that makes an image square: ``crop`` (shorter side, then the centre), ``squash`` or ``pad``.
        interpolation: Interpolation, ``bicubic`` or ``bilinear``.
    """

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    resize: str = "crop"
    interpolation: str = "bicubic"
