"""Converts pictures to a common form, so that a lifetime budget recognises the same picture in a PIL image and a tensor."""

from __future__ import annotations

import numpy as np
from PIL import Image
from torch import Tensor

from dpfed.data.items.item import content_of

_BYTES = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3}  # modes of PIL with a byte for each channel
_AS = {"1": "L", "P": "RGB"}
_NEAR = 0.2  # tolerance in levels of 255; half precision is off by 0.06


def picture_of(image: Image.Image | Tensor) -> bytes:
    """Returns a picture as bytes, which are the same for a PIL image, a uint8 tensor and a float tensor in [0, 1].

    A grey picture gives the same bytes with one channel and with three. Scaling or cropping a picture, or encoding it again
    in a lossy format, changes the bytes. A PIL image of mode I or F does not give the same bytes as a tensor of this picture.

    Args:
        image: PIL image, or tensor ``(C, H, W)``.
    """
    pixels = _pixels(image)
    if pixels is None:
        return content_of(image)
    if pixels.shape[2] == 3 and (pixels[..., 0] == pixels[..., 1]).all() and (pixels[..., 0] == pixels[..., 2]).all():
        pixels = pixels[..., :1]
    return f"{pixels.dtype} {pixels.shape}\n".encode() + pixels.tobytes()


def _pixels(image: Image.Image | Tensor) -> np.ndarray | None:
    """Returns the pixels of a picture, ``(H, W, C)`` uint8, uint16 or float32; ``None`` for a PIL image of mode I or F."""
    if isinstance(image, Image.Image):
        image = image.convert(_AS[image.mode]) if image.mode in _AS else image
        if image.mode in _BYTES:
            return np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, _BYTES[image.mode])
        return np.asarray(image)[..., None] if image.mode == "I;16" else None
    given = image.detach().cpu().numpy()
    return (_levels(given.astype(np.float32)) if given.dtype.kind == "f" else given).transpose(1, 2, 0)


def _levels(given: np.ndarray) -> np.ndarray:
    """Converts pixels k/255, for whole numbers k from 0 to 255, to k in uint8; returns other pixels unchanged."""
    scaled = given * 255
    whole = np.rint(scaled)
    scaled -= whole
    is_levels = whole.min() >= 0 and whole.max() <= 255 and max(-scaled.min(), scaled.max()) < _NEAR
    return whole.astype(np.uint8) if is_levels else given
