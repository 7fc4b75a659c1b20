"""What an image tower expects of its pixels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the input of a model.

    Attributes:
        mean: per channel, of pixels in [0, 1].
        std: per channel.
        resize: how an image becomes square: ``crop`` (shorter side, then the centre), ``squash`` or ``pad``.
        interpolation: ``bicubic`` or ``bilinear``.
    """

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    resize: str = "crop"
    interpolation: str = "bicubic"
