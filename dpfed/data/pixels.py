"""From image files and arrays to square RGB pixels."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from PIL import Image

# Named, because some of PIL's other readers start external programs (EPS) or open network-era curiosities.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")
EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2"})

_KERNELS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}

ImageInput = bytes | Image.Image | np.ndarray


class BrokenImage(ValueError):
    """An image that cannot be decoded; the message is the reason, in a few words."""


def decode(image: ImageInput, size: int | None = None) -> Image.Image:
    """Decodes an image completely.

    Args:
        image: an encoded file, a PIL image, or a uint8 array ``(H, W)`` or ``(H, W, 3)``.
        size: the side to which the caller will shrink the image: lets a JPEG be decoded at a reduced scale, never below
            twice that side.

    Returns:
        An RGB image of the original (or the reduced) size.

    Raises:
        BrokenImage: when the image is empty, truncated, or not an image at all.
    """
    try:
        if isinstance(image, np.ndarray):
            image = _from_array(image)
        elif isinstance(image, bytes):
            if not image:
                raise BrokenImage("empty file")
            image = Image.open(io.BytesIO(image), formats=_FORMATS)
            if size is not None:
                image.draft("RGB", (2 * size, 2 * size))
        image.load()
        return _rgb(image)
    except BrokenImage:
        raise
    except Exception as error:  # PIL's readers raise almost anything on damaged bytes: OSError, SyntaxError, zlib.error, ...
        raise BrokenImage(_reason(error)) from error


def square(image: Image.Image, size: int, resize: str = "crop", interpolation: str = "bicubic") -> np.ndarray:
    """Makes an image square, to the pixel as open_clip does, antialiased.

    Args:
        image: an RGB image.
        size: side, pixels.
        resize: ``"crop"`` (the shorter side becomes `size`, then the centre), ``"squash"`` (both sides become `size`) or
            ``"pad"`` (the longer side becomes `size`, then black borders).
        interpolation: ``"bicubic"`` or ``"bilinear"``.

    Returns:
        ``(3, size, size)`` uint8.

    Raises:
        ValueError: for another `resize`.
    """
    kernel = _KERNELS[interpolation]
    if image.size == (size, size):
        result = image
    elif resize == "crop":
        result = image.resize((size, size), kernel, box=_centre(image.size, size))
    elif resize == "squash":
        result = image.resize((size, size), kernel)
    elif resize == "pad":
        width, height = (max(1, round(side * size / max(image.size))) for side in image.size)
        inner = image.resize((width, height), kernel)
        result = Image.new("RGB", (size, size))
        result.paste(inner, ((size - width) // 2, (size - height) // 2))
    else:
        raise ValueError(f"unknown resize {resize!r}, expected 'crop', 'squash' or 'pad'")
    return np.ascontiguousarray(np.asarray(result).transpose(2, 0, 1))


def _centre(sides: tuple[int, int], size: int) -> tuple[float, float, float, float]:
    """The part of an image that is the centre once its shorter side is `size`: left, top, right, bottom."""
    starts, ends = [], []
    for side in sides:
        resized = size * side // min(sides)
        start = round((resized - size) / 2)
        starts.append(start * side / resized)
        ends.append(min(side, (start + size) * side / resized))
    return starts[0], starts[1], ends[0], ends[1]


def encode_png(image: Image.Image) -> bytes:
    """The image as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def memory(image: ImageInput) -> int:
    """The bytes that an image takes in memory as it is."""
    if isinstance(image, Image.Image):
        return 3 * image.width * image.height
    return len(image) if isinstance(image, bytes) else image.nbytes


def decoders() -> ThreadPoolExecutor:
    """The threads that decode images (PIL lets go of the interpreter lock while it does)."""
    return _pool(os.getpid())


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    # One pool per process: the threads of a parent do not survive a fork, and waiting for them would never end.
    return ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix=f"decode-{process}")


def _from_array(array: np.ndarray) -> Image.Image:
    colour = array.ndim == 3 and array.shape[2] == 3
    if array.dtype != np.uint8 or not (array.ndim == 2 or colour) or 0 in array.shape:
        raise BrokenImage(f"array {array.dtype}{array.shape}, expected uint8 (H, W) or (H, W, 3)")
    return Image.fromarray(array)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits per pixel, as in X-rays: PIL would clip instead of scaling
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise BrokenImage("floating-point pixels have no known range")
    return image if image.mode == "RGB" else image.convert("RGB")


def _reason(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image file"
    return str(error) or type(error).__name__
