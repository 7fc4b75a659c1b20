"""Decodes image files and arrays, and encodes images losslessly."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from PIL import Image

from dpfed.data.jpeg_scans import MOST_SCANS, too_many_scans
from dpfed.data.modes import survivable

# An explicit list, because some of PIL's other readers start external programs (EPS) or accept obsolete formats.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")
EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".jp2"}
) | frozenset({".ppm", ".pgm", ".pbm", ".pnm"})

MOST_PIXELS = 89_478_485  # above this, PIL warns of a decompression bomb
_LONGEST = 1 << 20  # pixels of a side; to scale an image down, PIL needs 32 bytes for each of these in one piece
_LARGE = 1 << 24  # pixels of images that are decoded one at a time
_TOO_LARGE = f"more than {MOST_PIXELS:,} pixels"

_SEVERAL = (b"GIF8", b"II*\0", b"MM\0*", b"RIFF", b"\x89PNG")  # first bytes of files that may hold several pictures

_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
_TIFF_MODES = frozenset({"CMYK", "LAB", "YCbCr", "I", "I;16B"})

ImageInput = bytes | Image.Image | np.ndarray


class BrokenImage(ValueError):
    """The error for an image that cannot be decoded; the message gives the reason in a few words."""


def decode(image: ImageInput) -> Image.Image:
    """Decodes an image completely.

    Args:
        image: Encoded file, PIL image, or uint8 array ``(H, W)`` or ``(H, W, 3)``.

    Returns:
        The image at its original size. Its mode is that of the file, unless open_clip would destroy images of this mode
        (`dpfed.data.modes`). `dpfed.data.resizing.square` accepts the image.

    Raises:
        BrokenImage: If the image is empty, damaged, too large, a JPEG file of more than 50 scans, an array of another shape or
            type, or not an image at all, or if its pixel values have no known range (`dpfed.data.modes.survivable`).
    """
    return _loaded(_opened(image))[0]


@contextlib.contextmanager
def decoded(image: ImageInput) -> Iterator[tuple[Image.Image, str | None]]:
    """Decodes an image as `decode` does, for use in a ``with`` block.

    A process decodes images of more than 2^24 pixels one at a time: the next image waits until the ``with`` block of the
    previous one ends.

    Args:
        image: Encoded file, PIL image or array, see `decode`.

    Yields:
        The image, and a few words that name its conversion, or ``None`` if it was not converted. Only images that open_clip
        would destroy are converted (`dpfed.data.modes`).

    Raises:
        BrokenImage: If `decode` raises one.
    """
    opened = _opened(image)
    with _turn(os.getpid()) if opened.width * opened.height > _LARGE else contextlib.nullcontext():
        yield _loaded(opened)


def _opened(image: ImageInput) -> Image.Image:
    """Opens an image and checks its size. Its pixels are decoded later, when it is loaded.

    Raises:
        BrokenImage: If the image is empty, too large, a JPEG file of more than 50 scans, an array of another shape or type, or
            not an image at all.
    """
    try:
        if isinstance(image, np.ndarray):
            image = _from_array(image)
        elif isinstance(image, bytes):
            if not image:
                raise BrokenImage("empty file")
            if too_many_scans(image):
                raise BrokenImage(f"a JPEG of more than {MOST_SCANS} scans")
            image = Image.open(io.BytesIO(image), formats=_FORMATS)
        if image.width * image.height > MOST_PIXELS:
            raise BrokenImage(_TOO_LARGE)
        if max(image.size) > _LONGEST:
            raise BrokenImage(f"a side of more than {_LONGEST:,} pixels")
        if 0 in image.size:
            raise BrokenImage("no pixels")
        return image
    except BrokenImage:
        raise
    except Image.DecompressionBombError as error:
        raise BrokenImage(_TOO_LARGE) from error
    except Exception as error:
        raise BrokenImage(_reason(error)) from error


def _loaded(image: Image.Image) -> tuple[Image.Image, str | None]:
    try:
        image.load()
        return survivable(image)
    except Exception as error:  # PIL's readers raise almost anything on damaged bytes: OSError, SyntaxError, zlib.error, ...
        raise BrokenImage(_reason(error)) from error


def holds_several(image: ImageInput) -> bool:
    """Returns whether an image file holds several pictures (an animation, or pages). `decode` reads only the first one.

    The result is also ``True`` for a GIF, PNG, TIFF or WebP file that cannot be opened or is damaged after its first picture.
    It is ``False`` for PIL images and arrays.
    """
    if not isinstance(image, bytes) or not image.startswith(_SEVERAL):
        return False
    try:
        with Image.open(io.BytesIO(image), formats=_FORMATS) as opened:
            return bool(getattr(opened, "is_animated", False))
    except Exception:  # the file is damaged after its first picture
        return True


def encode(image: Image.Image) -> bytes:
    """Encodes an image as the bytes of a lossless file.

    `dpfed.data.resizing.square` returns the same pixels for the image and for the decoded file. Images in modes that no file
    holds (HSV, RGBX, and colours multiplied by their alpha) are first converted to RGB or RGBA.
    """
    if image.mode not in _PNG_MODES | _TIFF_MODES:
        image = image.convert("RGBA" if image.mode == "RGBa" else "RGB")
    buffer = io.BytesIO()
    image.save(buffer, format="PNG" if image.mode in _PNG_MODES else "TIFF")
    return buffer.getvalue()


def memory(image: ImageInput) -> int:
    """Returns the number of bytes that an image takes in memory. For PIL images, this is an estimate: 3 bytes per pixel."""
    if isinstance(image, Image.Image):
        return 3 * image.width * image.height
    return len(image) if isinstance(image, bytes) else image.nbytes


def decoders() -> ThreadPoolExecutor:
    """Returns this process's pool of threads for decoding images. (`dpfed.data.store.pictures` may use processes instead.)"""
    return _pool(os.getpid())


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    # One pool per process: the threads of a parent do not survive a fork, and waiting for them would never end.
    return ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix=f"decode-{process}")


@lru_cache(maxsize=1)
def _turn(process: int) -> threading.Lock:
    # One per process: at the time of a fork, another thread of the parent may hold the parent's lock.
    return threading.Lock()


def _from_array(array: np.ndarray) -> Image.Image:
    colour = array.ndim == 3 and array.shape[2] == 3
    if array.dtype != np.uint8 or not (array.ndim == 2 or colour) or 0 in array.shape:
        raise BrokenImage(f"array {array.dtype}{array.shape}, expected uint8 (H, W) or (H, W, 3)")
    return Image.fromarray(array)


def _reason(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image file"
    return str(error) or type(error).__name__
