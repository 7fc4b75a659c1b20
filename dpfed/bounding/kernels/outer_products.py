"""Computes the gradients of a convolution kernel or a matrix for all groups in one launch.

Each gradient is a sum of outer products over the group's own rows.

One Triton program adds up one tile of one group's gradient, over a piece of the group's rows. It reads these rows from the
first to the last, in blocks of one size, and reads no other group's rows. So the sum depends on the group alone, at any
position in the pass. The patches of a convolution are read from the images directly, without a copy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 4096  # programs that keep a GPU busy
_ROWS = 1024  # least number of rows of a piece


@triton.jit
def _add_up(
    slopes, inputs, out, offsets, groups,
    height, width, across, positions, outputs, channels, columns,
    stride_v, stride_h, padding_v, padding_h, dilation_v, dilation_h,
    OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    group, piece = tl.program_id(2) % groups, tl.program_id(2) // groups
    tap = tl.program_id(1)
    tiles = tl.cdiv(channels, CHANNELS)
    tile = tl.program_id(0)
    p = tile // tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    c = tile % tiles * CHANNELS + tl.arange(0, CHANNELS)
    first, end = tl.load(offsets + group), tl.load(offsets + group + 1)
    down, right = tap // columns * dilation_v - padding_v, tap % columns * dilation_h - padding_h
    total = tl.zeros((OUTPUTS, CHANNELS), dtype=tl.float32)
    rows = tl.cdiv(tl.cdiv(end - first, tl.num_programs(2) // groups), ROWS) * ROWS  # of a piece, by the group's own size
    first += piece * rows
    end = tl.minimum(end, first + rows)
    for start in range(first, end, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        image, at = row // positions, row % positions
        y, x = at // across * stride_v + down, at % across * stride_h + right
        is_ours = row < end
        is_inside = is_ours & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        g = tl.load(slopes + row[:, None] * outputs + p[None, :], mask=is_ours[:, None] & (p < outputs)[None, :], other=0.0)
        seen = ((image * height + y) * width + x)[:, None] * channels + c[None, :]
        a = tl.load(inputs + seen, mask=is_inside[:, None] & (c < channels)[None, :], other=0.0)
        if WIDE:  # Triton's interpreter cannot multiply bf16
            g, a = g.to(tl.float32), a.to(tl.float32)
        total = tl.dot(tl.trans(g), a, total, input_precision=PRECISION)
    place = ((tl.program_id(2).to(tl.int64) * outputs + p)[:, None] * tl.num_programs(1) + tap) * channels + c[None, :]
    tl.store(out + place, total, mask=(p < outputs)[:, None] & (c < channels)[None, :])


def outer_products(
    slopes: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    kernel: tuple[int, int] = (1, 1),
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """Computes, for each group, the sum over its rows of the outer product of a row's output gradient and its input patch.

    Args:
        slopes: Gradients of a layer's output, ``(n, H', W', O)`` contiguous.
        inputs: Inputs of the layer, ``(n, H, W, C)`` contiguous, of the same dtype.
        offsets: Offsets ``(G + 1,)`` int32: group g has the images ``offsets[g]:offsets[g + 1]``.
        kernel: Height and width of a patch.
        stride: Vertical and horizontal stride of a convolution.
        padding: Vertical and horizontal padding.
        dilation: Vertical and horizontal dilation.

    Returns:
        The sums ``(G, O, kH, kW, C)`` float32.
    """
    (_, down, across, outputs), (_, height, width, channels) = slopes.shape, inputs.shape
    groups, positions = len(offsets) - 1, down * across
    wide = slopes.element_size() > 2
    # On a GPU, float32 is multiplied in three tensor-core products, which give 21 bits: ten times as fast as one of 24 bits.
    sides = [max(16, min(128, triton.next_power_of_2(side))) for side in (outputs, channels)]
    tiles = triton.cdiv(outputs, sides[0]) * triton.cdiv(channels, sides[1])
    pieces = _pieces(tiles * kernel[0] * kernel[1] * groups, len(inputs) * positions // groups)
    out = torch.empty(pieces, groups, outputs, *kernel, channels, device=slopes.device)
    _add_up[(tiles, kernel[0] * kernel[1], pieces * groups)](
        slopes, inputs, out, offsets * positions, groups, height, width, across, positions, outputs, channels, kernel[1],
        *stride, *padding, *dilation, *sides, 32 if wide else 64, "tf32x3" if wide else "tf32", slopes.device.type == "cpu",
        num_warps=8 if sides[0] * sides[1] > 8192 else 4, num_stages=2 if wide else 3,
    )  # fmt: skip
    return out.sum(0) if pieces > 1 else out[0]


def _pieces(programs: int, rows: int) -> int:
    """Returns the number of pieces into which a group's rows are cut, so that enough programs run to keep a GPU busy.

    Args:
        programs: Number of programs without cuts.
        rows: Number of rows of a usual group.
    """
    return max(1, min(16, _PROGRAMS // programs, rows // _ROWS))
