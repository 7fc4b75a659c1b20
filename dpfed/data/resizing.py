"""Converts decoded images to square RGB pixels, as stock open_clip does."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps

from dpfed.data.modes import rgb

_MOST_RESIZED = 1 << 25  # pixels of an image before it is cropped

_KERNELS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def square(image: Image.Image, size: int, resize: str = "crop", interpolation: str = "bicubic") -> np.ndarray:
    """Makes an image square and RGB; its pixels are those that stock open_clip's evaluation transform gives.

    The image is scaled in its own mode and converted to RGB afterwards, as in open_clip: transparent pixels then do not bleed
    into their neighbours, and images of 1 bit or with a palette are not smoothed. Only the crop of a very long image, which
    would have more than 2^25 pixels after scaling, may differ from open_clip's in a few values.

    Args:
        image: Image from `dpfed.data.decoding.decode`.
        size: Side of the result, pixels.
        resize: ``"crop"`` (the shorter side becomes `size`, then the centre is cut out), ``"squash"`` (both sides become
            `size`) or ``"pad"`` (the longer side becomes `size`, then borders of zeros are added: black, except in modes such
            as CMYK and palettes, where zero is another colour).
        interpolation: ``"bicubic"`` or ``"bilinear"``.

    Returns:
        The pixels, ``(3, size, size)`` uint8.

    Raises:
        ValueError: If `resize` or `interpolation` has another value.
    """
    if interpolation not in _KERNELS:
        raise ValueError(f"unknown interpolation {interpolation!r}, expected 'bicubic' or 'bilinear'")
    kernel = _KERNELS[interpolation]
    if resize == "crop":
        image = _crop(image, size, kernel)
    elif resize == "squash":
        image = image.resize((size, size), kernel)
    elif resize == "pad":
        image = _pad(image, size, kernel)
    else:
        raise ValueError(f"unknown resize {resize!r}, expected 'crop', 'squash' or 'pad'")
    return np.ascontiguousarray(np.asarray(rgb(image)).transpose(2, 0, 1))


def _crop(image: Image.Image, size: int, kernel: Image.Resampling) -> Image.Image:
    shorter = min(image.size)
    resized = [int(size * side / shorter) for side in image.size]
    starts = [round((side - size) / 2) for side in resized]
    if resized[0] * resized[1] <= _MOST_RESIZED:
        left, top = starts
        return image.resize(resized, kernel).crop((left, top, left + size, top + size))
    # A ribbon, hundreds of times as long as it is wide: only its centre is resized, as all of it would not fit in memory. PIL
    # rounds the fractions of a box, which moves a few values by one where nothing is transparent.
    ends = [min(side, (start + size) * side / new) for side, new, start in zip(image.size, resized, starts, strict=True)]
    first = [start * side / new for side, new, start in zip(image.size, resized, starts, strict=True)]
    return image.resize((size, size), kernel, box=(first[0], first[1], ends[0], ends[1]))


def _pad(image: Image.Image, size: int, kernel: Image.Resampling) -> Image.Image:
    ratio = max(side / size for side in image.size)
    inner = image.resize([max(1, round(side / ratio)) for side in image.size], kernel)
    left, top = ((size - side) // 2 for side in inner.size)
    bands = len(inner.getbands())
    border = (left, top, size - inner.width - left, size - inner.height - top)
    return ImageOps.expand(inner, border, fill=(0,) * bands if bands > 1 else 0)
