"""Makes random views on a GPU. One kernel makes a whole view from the pixels and parameters of this view alone.

A view is therefore a function of its own image and parameters alone, however many records are processed together. The formulas
are those of `dpfed.data.views.images`; only the rounding of float32 differs. Blur takes two more kernels, one for each
direction.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dpfed.data.transfer import constant

_TILE = 1024  # pixels that a program holds at a time
PARAMETERS = 16  # count of the numbers that describe a view


@triton.jit
def _unit(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _along(index, pixels, start, length):
    inset = tl.minimum(length / 2, 0.5 / pixels)
    place = tl.minimum(tl.maximum(start + length * ((index + 0.5) / pixels), start + inset), start + length - inset)
    return tl.minimum(tl.maximum(place * pixels - 0.5, 0.0), pixels - 1.0)


@triton.jit
def _mixed(source, first, second, across, width, columns, next_columns, down, mask):
    a = tl.load(source + first * width + columns, mask=mask, other=0).to(tl.float32)
    b = tl.load(source + first * width + next_columns, mask=mask, other=0).to(tl.float32)
    c = tl.load(source + second * width + columns, mask=mask, other=0).to(tl.float32)
    d = tl.load(source + second * width + next_columns, mask=mask, other=0).to(tl.float32)
    return ((a * (1 - across) + b * across) * (1 - down) + (c * (1 - across) + d * across) * down) / 255


@triton.jit
def _sampled(source, numbers, at, height, width):
    left, top, wide, high = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2), tl.load(numbers + 3)
    y, x = at // width, at % width
    x = tl.where(tl.load(numbers + 4) > 0, width - 1 - x, x)
    u, v = _along(x, width, left, wide), _along(y, height, top, high)
    column, row = tl.floor(u).to(tl.int32), tl.floor(v).to(tl.int32)
    next_column, next_row = tl.minimum(column + 1, width - 1), tl.minimum(row + 1, height - 1)
    across, down, plane, mask = u - column, v - row, height * width, at < height * width
    r = _mixed(source, row, next_row, across, width, column, next_column, down, mask)
    g = _mixed(source + plane, row, next_row, across, width, column, next_column, down, mask)
    b = _mixed(source + 2 * plane, row, next_row, across, width, column, next_column, down, mask)
    brightness = tl.load(numbers + 5)
    return _unit(r * brightness), _unit(g * brightness), _unit(b * brightness)


@triton.jit
def _make(images, parameters, scales, out, views, height, width, COUNT: tl.constexpr, TILE: tl.constexpr):
    view = tl.program_id(0).to(tl.int64)
    plane = height * width
    source, numbers, place = images + view // views * 3 * plane, parameters + view * COUNT, out + view * 3 * plane
    luma = tl.zeros((TILE,), tl.float32)
    for start in range(0, plane, TILE):
        at = start + tl.arange(0, TILE)
        r, g, b = _sampled(source, numbers, at, height, width)
        luma += tl.where(at < plane, 0.2989 * r + 0.587 * g + 0.114 * b, 0.0)
    contrast = tl.load(numbers + 6)
    grey = (1 - contrast) * (tl.sum(luma, 0) / plane)
    for start in range(0, plane, TILE):
        at = start + tl.arange(0, TILE)
        r, g, b = _sampled(source, numbers, at, height, width)
        r, g, b = _unit(r * contrast + grey), _unit(g * contrast + grey), _unit(b * contrast + grey)
        for channel in tl.static_range(3):
            line = numbers + 7 + 3 * channel
            value = _unit(tl.load(line) * r + tl.load(line + 1) * g + tl.load(line + 2) * b)
            value = (value - tl.load(scales + channel)) / tl.load(scales + 3 + channel)
            tl.store(place + channel * plane + at, value, mask=at < plane)


@triton.jit
def _blur(images, sigmas, scales, out, height, width, radius, ALONG: tl.constexpr, TILE: tl.constexpr):
    channel = tl.program_id(0).to(tl.int64)
    plane = height * width
    sigma = tl.maximum(tl.load(sigmas + channel // 3), 1e-3)
    mean, deviation = tl.load(scales + channel % 3), tl.load(scales + 3 + channel % 3)
    for start in range(0, plane, TILE):
        at = start + tl.arange(0, TILE)
        y, x = at // width, at % width
        total, weights = tl.zeros((TILE,), tl.float32), 0.0 * sigma
        for tap in range(0, 2 * radius + 1):
            step = tap - radius
            weight = tl.exp(-0.5 * (step / sigma) * (step / sigma))
            moved = tl.abs((x if ALONG else y) + step)
            last = (width if ALONG else height) - 1
            moved = tl.where(moved > last, 2 * last - moved, moved)  # reflected at the border
            seen = y * width + moved if ALONG else moved * width + x
            total += weight * tl.load(images + channel * plane + seen, mask=at < plane, other=0.0)
            weights += weight
        tl.store(out + channel * plane + at, (total / weights - mean) / deviation, mask=at < plane)


def views_of(
    images: Tensor, parameters: Tensor, scales: Tensor, views: int, sigmas: Tensor | None = None, radius: int = 0
) -> Tensor:
    """Makes views of images, with given parameters.

    Args:
        images: Images, ``(n, 3, H, W)`` uint8.
        parameters: Parameters of each view, ``(n * views, 16)`` float32: left, top, width and height of the crop's box, as
            fractions of the image; 1 if the view is flipped, otherwise 0; factors of brightness and contrast; the 3x3 matrix by
            which its colours are multiplied.
        scales: Mean of each channel, then standard deviation of each channel, ``(6,)`` float32.
        views: Number of views of each image.
        sigmas: Standard deviation of each view's blur, ``(n * views,)`` float32, pixels; ``None``: there is no blur.
        radius: Radius of the blur's kernel, pixels.

    Returns:
        The views, ``(n * views, 3, H, W)`` float32, normalised.
    """
    height, width = images.shape[2:]
    out = torch.empty(len(parameters), 3, height, width, device=images.device)
    plain = constant((0.0,) * 3 + (1.0,) * 3, images.device)
    if not len(out):
        return out
    tile = min(_TILE, triton.next_power_of_2(height * width))
    given = images.contiguous(), parameters.contiguous(), scales if sigmas is None else plain
    _make[(len(out),)](*given, out, views, height, width, PARAMETERS, tile)
    if sigmas is None:
        return out
    beside, radius = torch.empty_like(out), min(radius, height - 1, width - 1)
    _blur[(3 * len(out),)](out, sigmas, plain, beside, height, width, radius, True, tile)
    _blur[(3 * len(out),)](beside, sigmas, scales, out, height, width, radius, False, tile)
    return out
