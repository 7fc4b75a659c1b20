"""Finds the parts of an item of a data set: image, captions, labels, key and unit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dpfed.data.store.record import is_text

Part: TypeAlias = "str | int | Callable[[Any], Any]"
"""The location of a part in an item: a column, a position in a tuple, or a function of the item."""

_IMAGES = ("image", "img", "jpg", "png", "pixel_values")  # default columns of the image
_DTYPES = (torch.uint8, torch.uint16, torch.float16, torch.float32, torch.float64)
_NUMBERS = "uint8, uint16 or floats of 16, 32 or 64 bits (float16, float32, float64)"
_CHANNELS = (1, 3, 4)  # usual numbers of channels
_MODES = {"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"}


class BrokenItem(Exception):
    """The error for an item that cannot be used; the message says briefly what is wrong with it."""


@dataclass(frozen=True)
class Parts:
    """The locations of the parts of an item. An item is an image, a tuple or list, or a mapping from columns to cells.

    Attributes:
        image: Location of the image; ``None``: the item itself, the first entry of a tuple, or a column such as ``image``.
        captions: Location of a text, or of a list of texts; ``None``: the second entry of a tuple, if this is a text or a list
            of texts; otherwise the item has no captions.
        labels: Location of each label, by the label's name; ``None``: if the second entry of a tuple, or the column ``label``
            of a mapping, is a whole number, it is the only label, named ``label``.
        key: Location of the key that identifies the record, whatever its position; ``None``: a hash of the record's contents
            identifies it.
        unit: Location of the name of the record's unit, such as a person; ``None``: there are no units.
    """

    image: Part | None = None
    captions: Part | None = None
    labels: Mapping[str, Part] | None = None
    key: Part | None = None
    unit: Part | None = None

    def image_of(self, item: Any) -> Image.Image | Tensor:
        """Returns the image of an item.

        Raises:
            BrokenItem: If the item has nothing at the location `image`, or no usable image there, see the function `image_of`.
        """
        return image_of(_image_part(item) if self.image is None else part_of(item, self.image))

    def captions_of(self, item: Any) -> list[str]:
        """Returns the captions of an item; an empty list if `captions` is not set, and the item has none.

        Raises:
            BrokenItem: If a text cannot be written as UTF-8; or if `captions` is set, and the item has nothing at this location
                or something other than a text or a list of texts, or a text is blank.
        """
        if self.captions is None:
            second = _second(item)
            texts = [second] if isinstance(second, str) else second
            is_texts = isinstance(texts, list | tuple) and texts and all(isinstance(text, str) for text in texts)
            return _written(texts) if is_texts else []
        value = part_of(item, self.captions)
        texts = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise BrokenItem("its caption is blank, or neither a string nor a list of strings")
        return _written(texts)

    def labels_of(self, item: Any) -> dict[str, Any]:
        """Returns the labels of an item by their names, as they stand in the item; ``None`` for a record without the label.

        Raises:
            BrokenItem: If the item has no part at a location of `labels`.
        """
        if self.labels is not None:
            return {name: _plain(part_of(item, part)) for name, part in self.labels.items()}
        second = item.get("label") if isinstance(item, Mapping) else _second(item)
        second = _plain(second)
        return {"label": second} if isinstance(second, int) and not isinstance(second, bool) else {}


def part_of(item: Any, part: Part) -> Any:
    """Returns the part of an item at a location.

    Args:
        item: Item of a data set.
        part: Location: a column, a position in a tuple, or a function of the item.

    Raises:
        BrokenItem: If the item has no such column or position. If `part` is a function, its own errors are raised as they are.
    """
    if callable(part):
        return part(item)
    try:
        return item[part]
    except (LookupError, TypeError) as error:
        have = f"it has {', '.join(map(repr, item))}" if isinstance(item, Mapping) else f"it is {described(item)}"
        raise BrokenItem(f"it has no {part!r}; {have}") from error


def image_of(value: Any) -> Image.Image | Tensor:
    """Converts an image to a PIL image or a tensor.

    Args:
        value: PIL image; array ``(H, W)``, ``(H, W, 3)`` of uint8, or ``(C, H, W)``; or tensor ``(C, H, W)``.

    Returns:
        A PIL image, or a tensor ``(C, H, W)`` of uint8, uint16, float16, float32 or float64.

    Raises:
        BrokenItem: If `value` is anything else, is empty, has numbers that are not finite, has a mode that dpfed does not read
            (a PIL image), or seems to be ``(H, W, C)``: the length of its last axis is a usual number of channels, and that of
            its first axis is not.
    """
    if isinstance(value, Image.Image):
        if value.mode not in _MODES:
            raise BrokenItem(f"its image has the mode {value.mode}, expected a mode such as RGB, L or I;16")
        return value
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 3)):
            return Image.fromarray(value)
        if value.dtype not in (np.uint8, np.uint16, np.float16, np.float32, np.float64):
            raise BrokenItem(f"its image is an array of {value.dtype}, expected {_NUMBERS}")
        value = torch.from_numpy(np.ascontiguousarray(value[None] if value.ndim == 2 else value))
    if not isinstance(value, Tensor):
        raise BrokenItem(f"its image is {described(value)}, expected a PIL image, an array or a tensor (C, H, W)")
    if value.dtype not in _DTYPES:
        raise BrokenItem(f"its image is {described(value)}, expected {_NUMBERS}")
    if value.dim() != 3 or 0 in value.shape:
        raise BrokenItem(f"its image is {described(value)}, expected a shape (C, H, W)")
    if value.shape[2] in _CHANNELS and value.shape[0] not in _CHANNELS:
        raise BrokenItem(
            f"its image is {described(value)}, and the last axis looks like the channels. Expected a shape (C, H, W): move the "
            "channels to the front, .transpose(2, 0, 1) for an array or .permute(2, 0, 1) for a tensor. (If the image is "
            f"{value.shape[2]} pixels wide, exchange height and width)"
        )
    if value.is_floating_point() and not is_finite(value):
        raise BrokenItem("its image has numbers that are not finite")
    return value


def is_finite(values: Tensor) -> bool:
    """Returns whether all numbers are finite. Only the smallest and the largest are tested, which is ten times as fast."""
    return all(bool(bound.isfinite()) for bound in values.aminmax())


def content_of(image: Image.Image | Tensor) -> bytes:
    """Returns the contents of an image, with its size and type, as bytes.

    Images with different pixels have different bytes. Transparency that a PIL image keeps beside its pixels does not count.
    """
    if isinstance(image, Tensor):
        pixels = image.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{image.dtype} {tuple(image.shape)}\n".encode() + pixels
    palette = image.getpalette() if image.mode == "P" else None
    return f"{image.mode} {image.size} {palette}\n".encode() + image.tobytes()


def hashed(*parts: bytes) -> bytes:
    """Returns the 16-byte hash of a sequence of byte strings."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def described(value: Any) -> str:
    """Describes a value in a few words: its type and shape, not its contents."""
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def _image_part(item: Any) -> Any:
    if isinstance(item, Mapping):
        column = next((name for name in _IMAGES if name in item), None)
        if column is None:
            columns = ", ".join(map(repr, item))
            raise BrokenItem(f"none of its columns {columns} is called 'image': give the name of the image's column as image=")
        return item[column]
    if isinstance(item, tuple | list):
        if not item:
            raise BrokenItem("it is an empty tuple")
        return item[0]
    return item


def _written(texts: Iterable[str]) -> list[str]:
    """Returns captions as a list.

    Raises:
        BrokenItem: If a caption cannot be written as UTF-8.
    """
    if bad := [text for text in texts if not is_text(text)]:
        raise BrokenItem(f"its caption {ascii(bad[0])} cannot be written as UTF-8: replace its lone surrogates")
    return list(texts)


def _second(item: Any) -> Any:
    return item[1] if isinstance(item, tuple | list) and len(item) > 1 else None


def _plain(value: Any) -> Any:
    """Converts a number of numpy, or a tensor of one number, to a number of Python; returns other values unchanged."""
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.dim() == 0):
        return value.item()
    return value
