"""Converts the inputs that users pass to an encoder: one image or many, in several forms; one caption or many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dpfed.data.decoding import BrokenImage, decode
from dpfed.data.items.item import described
from dpfed.data.resizing import square
from dpfed.data.store.record import is_text
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError

Picture: TypeAlias = Image.Image | np.ndarray | Tensor
Pictures: TypeAlias = Picture | Iterable[Picture]

_EXPECTED = (
    "expected a PIL image, a uint8 array (H, W, 3) or (H, W), a uint8 tensor (3, H, W), a list of these, or a uint8 array "
    "(n, H, W, 3) or tensor (n, 3, H, W)"
)
_FLOATS = "floats do not say which value is white: give whole numbers 0 to 255, for example (255 * x).round() as uint8"


def square_images(images: Pictures, size: int, wanted: Preprocessing) -> Tensor:
    """Converts images to squares as a model sees them. The pixels do not depend on the form in which an image is given.

    Args:
        images: A PIL image, a uint8 array ``(H, W, 3)`` or ``(H, W)``, a uint8 tensor ``(3, H, W)``, several of these, or a
            uint8 array ``(n, H, W, 3)`` or tensor ``(n, 3, H, W)``.
        size: Side of the squares, pixels.
        wanted: Preprocessing, which says how an image becomes square.

    Returns:
        The images, ``(n, 3, size, size)`` uint8.

    Raises:
        UserError: If an image has another form or cannot be decoded, or there is no image.
    """
    if isinstance(images, Tensor) and images.dtype == torch.uint8 and images.shape[1:] == (3, size, size) and len(images):
        return images
    squares = []
    for number, image in enumerate(_each(images)):
        try:
            squares.append(square(decode(_decodable(image)), size, wanted.resize, wanted.interpolation))
        except (BrokenImage, ValueError, MemoryError) as error:
            raise UserError(f"image {number} cannot be used: {error}; {_EXPECTED}. [model-image]") from error
    if not squares:
        raise UserError(f"there is no image: {_EXPECTED}. [model-no-image]")
    return torch.from_numpy(np.stack(squares))


def texts(captions: str | Iterable[str]) -> list[str]:
    """Converts one caption or several to a list.

    Raises:
        UserError: If a caption is not a string, or cannot be encoded, or there is no caption.
    """
    if isinstance(captions, str):
        captions = [captions]
    if isinstance(captions, bytes) or not isinstance(captions, Iterable):
        raise UserError(f"expected a caption or a list of captions, got {described(captions)}. [text-captions-type]")
    listed = list(captions)
    for number, text in enumerate(listed):
        if not isinstance(text, str):
            raise UserError(f"caption {number} is {described(text)}: expected a string. [text-caption-type]")
        if not is_text(text):
            raise UserError(
                f"caption {number} holds half a surrogate pair, which UTF-8 cannot encode: remove it. [text-surrogate]"
            )
    if not listed:
        raise UserError("there is no caption: expected a string or a list of strings. [text-no-caption]")
    return listed


def _each(images: Pictures) -> Iterable[object]:
    """Returns the images one by one.

    Raises:
        UserError: If `images` is neither an image nor a collection of images.
    """
    if isinstance(images, Image.Image):
        return [images]
    if isinstance(images, np.ndarray | Tensor):
        if images.ndim == 4:
            return images
        if images.ndim in (2, 3):
            return [images]
        raise UserError(f"an array of shape {tuple(images.shape)} is not an image: {_EXPECTED}. [model-image-shape]")
    if isinstance(images, str | bytes | dict) or not isinstance(images, Iterable):
        hint = "; open files with PIL.Image.open" if isinstance(images, str | bytes) else ""
        raise UserError(f"{described(images)} is not an image: {_EXPECTED}{hint}. [model-image-type]")
    return images


def _decodable(image: object) -> Image.Image | np.ndarray:
    """Converts one image to a form that `decode` supports.

    Raises:
        BrokenImage: For an image in another form.
    """
    if isinstance(image, Image.Image):
        return image
    if not isinstance(image, np.ndarray | Tensor):
        raise BrokenImage(f"it is {described(image)}")
    whole = image.dtype == (np.uint8 if isinstance(image, np.ndarray) else torch.uint8)
    kind = f"it is {'an array' if isinstance(image, np.ndarray) else 'a tensor'} {tuple(image.shape)} of {image.dtype}"
    if not whole:
        raise BrokenImage(f"{kind}, and {_FLOATS}" if "float" in str(image.dtype) else kind)
    if isinstance(image, Tensor):
        if image.ndim != 3 or image.shape[0] != 3:
            raise BrokenImage(kind)
        image = image.detach().cpu().permute(1, 2, 0).numpy()
    if 0 in image.shape or not (image.ndim == 2 or image.ndim == 3 and image.shape[2] == 3):
        raise BrokenImage(kind)
    return np.ascontiguousarray(image)
