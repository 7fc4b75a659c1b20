"""Computes gradients of the weights of grouped and depthwise convolutions, separately for each image.

Each Triton program computes one entry of the gradient of the convolution's kernel, for a block of output channels and for one
image. It adds up the contributions of all output positions in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_up(
    slopes, inputs, out, height, width, across, positions, outputs, channels, columns, together, per_group,
    stride_v, stride_h, padding_v, padding_h, dilation_v, dilation_h, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    tap, number = tl.program_id(1) // together, tl.program_id(1) % together
    p = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    c = p // per_group * together + number
    down, right = tap // columns * dilation_v - padding_v, tap % columns * dilation_h - padding_h
    total = tl.zeros((OUTPUTS,), dtype=tl.float32)
    for start in range(0, positions, ROWS):
        at = start + tl.arange(0, ROWS)
        y, x = at // across * stride_v + down, at % across * stride_h + right
        is_inside = (at < positions) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        mask = is_inside[:, None] & (p < outputs)[None, :]
        g = tl.load(slopes + (image * positions + at)[:, None] * outputs + p[None, :], mask=mask, other=0.0).to(tl.float32)
        seen = ((image * height + y) * width + x)[:, None] * channels + c[None, :]
        total += tl.sum(g * tl.load(inputs + seen, mask=mask, other=0.0).to(tl.float32), 0)
    place = ((image * outputs + p) * together + number) * (tl.num_programs(1) // together) + tap
    tl.store(out + place, total, mask=p < outputs)


def grouped_convolution(
    slopes: Tensor,
    inputs: Tensor,
    groups: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """Computes the gradient of a convolution's kernel for each of n images.

    Args:
        slopes: Gradients of the output, ``(n, H', W', O)`` contiguous.
        inputs: Inputs ``(n, H, W, C)`` contiguous.
        groups: Number of channel groups.
        kernel: Height and width of the kernel.
        stride: Vertical and horizontal stride.
        padding: Vertical and horizontal padding.
        dilation: Vertical and horizontal dilation.

    Returns:
        The gradients ``(n, O, C / groups, kH, kW)`` float32.
    """
    (images, down, across, outputs), (_, height, width, channels) = slopes.shape, inputs.shape
    together, taps = channels // groups, kernel[0] * kernel[1]
    out = torch.empty(images, outputs, together, *kernel, device=slopes.device)
    tile = min(64, triton.next_power_of_2(outputs))
    _add_up[(images, taps * together, triton.cdiv(outputs, tile))](
        slopes, inputs, out, height, width, across, down * across, outputs, channels, kernel[1], together, outputs // groups,
        *stride, *padding, *dilation, tile, 2048 // tile, num_warps=4,
    )  # fmt: skip
    return out
