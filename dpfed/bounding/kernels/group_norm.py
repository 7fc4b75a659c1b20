"""Computes a GroupNorm, with the addition and ReLU after it in a residual network, in one launch, and its gradients in another.

A channel group is a set of channels that GroupNorm normalises together. One program of the kernel normalises one or more
channel groups of one image. It reads the positions in chunks of one size, from the first to the last. So every result depends
on that image alone, whichever records share the pass. Images are channels-last, in bf16 or float32, and the output is written
once; statistics and gradients of scale and shift are float32. Mean and variance come from one reading, in which the chunks'
means and variances are merged (Chan et al. 1979). This avoids the cancellation that a sum of squares would have.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 2048  # entries that a program holds at a time, about
_CHANNELS = 64  # channels of a tile, unless a channel group is wider


@triton.jit
def _of_channels(group_values, GROUPS: tl.constexpr, WIDE: tl.constexpr):
    """Repeats the value of each channel group for all channels of the group."""
    return tl.reshape(tl.broadcast_to(group_values[:, None], (GROUPS, WIDE)), (GROUPS * WIDE,))


@triton.jit
def _place(channels, groups, GROUPS: tl.constexpr, WIDE: tl.constexpr, WIDTH: tl.constexpr):
    """Returns the channels and the channel groups of this program, each with a mask that is true where they exist."""
    slot = tl.arange(0, GROUPS * WIDE)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    if WIDE == WIDTH:  # contiguous
        channel = tl.program_id(1) * GROUPS * WIDTH + slot
        return channel, channel < channels, group, group < groups
    channel = (tl.program_id(1) * GROUPS + slot // WIDE) * WIDTH + slot % WIDE
    return channel, (slot % WIDE < WIDTH) & (channel < channels), group, group < groups


@triton.jit
def _normalise(
    images, added, scale, shift, out, means, inverses, positions, channels, groups, epsilon,
    ADDS: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    c, is_channel, group, is_group = _place(channels, groups, GROUPS, WIDE, WIDTH)
    mean, moment = tl.zeros((GROUPS * WIDE,), tl.float32), tl.zeros((GROUPS * WIDE,), tl.float32)
    for start in range(0, positions, ROWS):
        row = start + tl.arange(0, ROWS)
        is_ours = (row < positions)[:, None] & is_channel[None, :]
        x = tl.load(images + (image * positions + row)[:, None] * channels + c[None, :], mask=is_ours, other=0.0).to(tl.float32)
        count = tl.minimum(positions - start, ROWS).to(tl.float32)
        chunk_mean = tl.sum(x, 0) / count
        apart = tl.where(is_ours, x - chunk_mean[None, :], 0.0)
        share = count / (start + count)
        moment += tl.sum(apart * apart, 0) + (chunk_mean - mean) * (chunk_mean - mean) * (start * share)
        mean += (chunk_mean - mean) * share
    of_groups = tl.sum(tl.reshape(tl.where(is_channel, mean, 0.0), (GROUPS, WIDE)), 1) / WIDTH
    beside = tl.where(is_channel, mean - _of_channels(of_groups, GROUPS, WIDE), 0.0)
    squares = tl.reshape(tl.where(is_channel, moment + beside * beside * positions, 0.0), (GROUPS, WIDE))
    inverse = 1.0 / tl.sqrt(tl.sum(squares, 1) / (WIDTH * positions) + epsilon)
    tl.store(means + image * groups + group, of_groups, mask=is_group)
    tl.store(inverses + image * groups + group, inverse, mask=is_group)
    w = tl.load(scale + c, mask=is_channel, other=0.0) * _of_channels(inverse, GROUPS, WIDE)
    b = tl.load(shift + c, mask=is_channel, other=0.0)
    m = _of_channels(of_groups, GROUPS, WIDE)
    for start in range(0, positions, ROWS):
        row = start + tl.arange(0, ROWS)
        is_ours = (row < positions)[:, None] & is_channel[None, :]
        place = (image * positions + row)[:, None] * channels + c[None, :]
        y = (tl.load(images + place, mask=is_ours, other=0.0).to(tl.float32) - m[None, :]) * w[None, :] + b[None, :]
        if ADDS:
            y += tl.load(added + place, mask=is_ours, other=0.0).to(tl.float32)
        if RELU:
            y = tl.where(y < 0, 0.0, y)  # NaN stays NaN
        tl.store(out + place, y, mask=is_ours)


@triton.jit
def _pull_back(
    slopes, images, out, scale, means, inverses, of_images, of_added, of_both, positions, channels, groups,
    ADDS: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    c, is_channel, group, is_group = _place(channels, groups, GROUPS, WIDE, WIDTH)
    m = _of_channels(tl.load(means + image * groups + group, mask=is_group, other=0.0), GROUPS, WIDE)
    inverse = _of_channels(tl.load(inverses + image * groups + group, mask=is_group, other=0.0), GROUPS, WIDE)
    w = tl.load(scale + c, mask=is_channel, other=0.0)
    scales, shifts = tl.zeros((GROUPS * WIDE,), tl.float32), tl.zeros((GROUPS * WIDE,), tl.float32)
    for start in range(0, positions, ROWS):
        row = start + tl.arange(0, ROWS)
        is_ours = (row < positions)[:, None] & is_channel[None, :]
        place = (image * positions + row)[:, None] * channels + c[None, :]
        g = tl.load(slopes + place, mask=is_ours, other=0.0).to(tl.float32)
        if RELU:
            g = tl.where(tl.load(out + place, mask=is_ours, other=0.0) <= 0, 0.0, g)
        x = tl.load(images + place, mask=is_ours, other=0.0).to(tl.float32)
        scales += tl.sum(g * (x - m[None, :]) * inverse[None, :], 0)
        shifts += tl.sum(g, 0)
    tl.store(of_both + 2 * image * channels + c, scales, mask=is_channel)
    tl.store(of_both + (2 * image + 1) * channels + c, shifts, mask=is_channel)
    size = WIDTH * positions
    along = _of_channels(tl.sum(tl.reshape(w * scales, (GROUPS, WIDE)), 1) / size, GROUPS, WIDE)
    level = _of_channels(tl.sum(tl.reshape(w * shifts, (GROUPS, WIDE)), 1) / size, GROUPS, WIDE)
    for start in range(0, positions, ROWS):
        row = start + tl.arange(0, ROWS)
        is_ours = (row < positions)[:, None] & is_channel[None, :]
        place = (image * positions + row)[:, None] * channels + c[None, :]
        g = tl.load(slopes + place, mask=is_ours, other=0.0).to(tl.float32)
        if RELU:
            g = tl.where(tl.load(out + place, mask=is_ours, other=0.0) <= 0, 0.0, g)
        if ADDS:
            tl.store(of_added + place, g, mask=is_ours)
        x = tl.load(images + place, mask=is_ours, other=0.0).to(tl.float32)
        normal = (x - m[None, :]) * inverse[None, :]
        tl.store(
            of_images + place, (g * w[None, :] - level[None, :] - normal * along[None, :]) * inverse[None, :], mask=is_ours
        )


def _launch(shape: torch.Size, groups: int) -> tuple[tuple[int, int], tuple[int, int, int], dict]:
    """Returns the launch grid, the sizes of an image, and the constants for which the kernels are compiled."""
    rows, channels, height, width = shape
    wide = triton.next_power_of_2(channels // groups)
    together = max(1, min(triton.next_power_of_2(groups), _CHANNELS // wide))
    side = max(1, _TILE // (together * wide))
    compiled = {"ROWS": side, "GROUPS": together, "WIDE": wide, "WIDTH": channels // groups}
    return (rows, triton.cdiv(groups, together)), (height * width, channels, groups), compiled


def _channels_last(images: Tensor, like: Tensor) -> Tensor:
    return images.to(like.dtype).contiguous(memory_format=torch.channels_last)


def normalise(
    images: Tensor, scale: Tensor, shift: Tensor, groups: int, epsilon: float, relu: bool, added: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes ``relu(group_norm(images) + added)``; the ReLU and the addition are optional.

    Args:
        images: Images ``(n, C, H, W)``, bf16 or float32.
        scale: Scales ``(C,)`` float32.
        shift: Shifts ``(C,)`` float32.
        groups: Number of channel groups.
        epsilon: Term added to the variance.
        relu: Whether negative values become 0.
        added: Term to add after normalisation, in the shape of the images; ``None`` if there is none.

    Returns:
        The output in the images' dtype, channels last; mean and inverse standard deviation of each channel group, ``(n,
        groups)`` float32 each.
    """
    x = _channels_last(images, images)
    out, means = torch.empty_like(x), x.new_empty(len(x), groups, dtype=torch.float32)
    inverses, adds = torch.empty_like(means), added is not None
    beside = x if added is None else _channels_last(added, x)
    grid, numbers, compiled = _launch(x.shape, groups)
    _normalise[grid](
        x, beside, scale, shift, out, means, inverses, *numbers, epsilon, ADDS=adds, RELU=relu, **compiled, num_warps=4
    )
    return out, means, inverses


def pull_back(
    slopes: Tensor, images: Tensor, out: Tensor, scale: Tensor, means: Tensor, inverses: Tensor, relu: bool, adds: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Computes the gradients of `normalise`.

    Args:
        slopes: Gradients of the output.
        images: Images given to `normalise`.
        out: Output of `normalise`.
        scale: Scales given to `normalise`.
        means: Means that `normalise` returned.
        inverses: Inverse standard deviations that `normalise` returned.
        relu: Whether `normalise` applied a ReLU.
        adds: Whether `normalise` added a term.

    Returns:
        Gradients of the images and of the added term (``None`` without such a term), in the images' dtype; gradients of scale
        and shift for every image, ``(n, 2, C)`` float32.
    """
    x, g = _channels_last(images, images), _channels_last(slopes, out)
    of_images, of_added = torch.empty_like(x), torch.empty_like(x) if adds else None
    of_both = x.new_empty(len(x), 2, x.shape[1], dtype=torch.float32)
    grid, numbers, compiled = _launch(x.shape, means.shape[1])
    _pull_back[grid](
        g, x, out, scale, means, inverses, of_images, x if of_added is None else of_added, of_both, *numbers,
        ADDS=adds, RELU=relu, **compiled, num_warps=4,
    )  # fmt: skip
    return of_images, of_added, of_both
