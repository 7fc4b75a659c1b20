"""Draws dead leaves: captioned pictures that show nothing real, but have statistics like those of photographs.

Shapes of all sizes, called leaves, cover each other as leaves on the ground do (Lee, Mumford and Huang 2001; Baradad et al.
2021 train on such pictures). dpfed also gives the shapes textures: stripes, checks, dots, gradients, and noise whose amplitude
falls with the frequency. Every picture has a style of its own (colours, shapes, textures, sizes), so that two crops of a
picture have something in common.

What a picture shows is a function of the seed, its split and its number. No data is read, so anyone can draw the picture again.
(Another processor or version of numpy may round a sine differently, which changes a pixel now and then.)
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

VERSION = 1  # part of the names of stores and starts: a changed generator must not reuse what an older one made
SHAPES = ("disc", "ellipse", "triangle", "rectangle", "polygon", "star")
TEXTURES = ("plain", "shaded", "striped", "checkered", "dotted", "rough")
PLACES = ("left of", "above", "right of", "below")
# Ranges of hue, saturation and value; hues beyond 1 are those from 0 on.
COLORS = {
    "red": ((0.97, 1.02), (0.60, 0.95), (0.45, 0.95)),
    "orange": ((0.055, 0.10), (0.65, 0.95), (0.75, 1.00)),
    "yellow": ((0.13, 0.17), (0.50, 0.95), (0.75, 1.00)),
    "green": ((0.24, 0.42), (0.30, 0.90), (0.20, 0.80)),
    "cyan": ((0.46, 0.53), (0.35, 0.90), (0.45, 0.95)),
    "blue": ((0.56, 0.67), (0.35, 0.90), (0.30, 0.95)),
    "purple": ((0.73, 0.82), (0.35, 0.80), (0.30, 0.80)),
    "pink": ((0.88, 0.96), (0.25, 0.55), (0.80, 1.00)),
    "brown": ((0.04, 0.09), (0.35, 0.75), (0.22, 0.50)),
    "gray": ((0.00, 1.00), (0.00, 0.12), (0.30, 0.72)),
    "black": ((0.00, 1.00), (0.00, 0.40), (0.02, 0.16)),
    "white": ((0.00, 1.00), (0.00, 0.08), (0.86, 1.00)),
}

_COLORS = np.array(list(COLORS.values()))  # (12, 3, 2)
_NAMES = tuple(COLORS)
_LEAVES = 64  # at most, behind the two of the caption
_FRONT = 2
_STYLE, _PER_LEAF = 40, 20  # uniforms of a picture, and of each of its leaves
_SIDES = {"triangle": 3, "rectangle": 4}


class Picture(NamedTuple):
    """A picture, its caption, and the shape, texture and colour of its frontmost leaf.

    Attributes:
        pixels: Pixels, ``(size, size, 3)`` uint8.
        caption: Caption with the size, texture, colour and shape of the two frontmost leaves, with their relative position, and
            with what lies behind them.
        shape: Shape of the frontmost leaf, an index into `SHAPES`.
        texture: Texture of the frontmost leaf, an index into `TEXTURES`.
        color: Colour of the frontmost leaf, an index into `COLORS`.
    """

    pixels: np.ndarray
    caption: str
    shape: int
    texture: int
    color: int


class _Leaves(NamedTuple):
    """The n leaves of a picture, from back to front: the first is the ground, the last is in front.

    Each array has one entry for each leaf. Lengths are fractions of the picture's side.
    """

    x: np.ndarray
    y: np.ndarray
    radius: np.ndarray
    aspect: np.ndarray  # the shorter radius over the longer one
    turn: np.ndarray  # radians
    shape: np.ndarray
    sides: np.ndarray  # corners of a polygon, points of a star
    texture: np.ndarray
    colors: np.ndarray  # (n, 2, 3) RGB in [0, 1]; textures go from the first to the second
    frequency: np.ndarray  # of stripes and the like: periods on a side
    angle: np.ndarray  # of stripes, radians
    phase: np.ndarray  # (n, 2), in periods
    sharpness: np.ndarray
    roughness: np.ndarray  # how much noise joins any texture


class _Style(NamedTuple):
    """Choices that hold for a whole picture: the number and the sizes of its leaves, its colours, noise and light."""

    behind: int  # number of leaves behind the two in front
    least: float  # smallest radius
    power: float  # exponent of the law of radii
    palette: np.ndarray  # indices in `COLORS`, of the four colours behind and of the two leaves in front
    spectrum: float  # amplitude of the noise at frequency f: f to the power of minus this
    light: np.ndarray  # (2,) direction of the light
    shading: float
    grain: float


def draw(seed: int, split: int, number: int, size: int) -> Picture:
    """Draws one picture, and writes its caption.

    Args:
        seed: Public seed; another seed gives other pictures.
        split: Number of the picture's split; another split has other pictures.
        number: Number of the picture, below 2^32.
        size: Side of the picture, pixels.
    """
    style, leaves, generator = _drawn(seed, split, number)
    return Picture(
        _pixels(style, leaves, generator, size, 2 if size < 128 else 1),
        _caption(style, leaves),
        int(leaves.shape[-1]),
        int(leaves.texture[-1]),
        int(style.palette[-1]),
    )


def draw_apart(seed: int, split: int, number: int, size: int) -> np.ndarray:
    """Draws a picture of one to six leaves on a white ground, ``(size, size, 3)`` uint8; see `draw` for the arguments."""
    style, leaves, generator = _drawn(seed, split, number)
    count = len(leaves.x)
    kept = np.r_[0, np.arange(count - 1 - number % 6, count)]  # what is behind everything becomes the ground
    ground, leaves = np.arange(len(kept)) == 0, _Leaves(*(each[kept] for each in leaves))
    leaves = leaves._replace(
        x=0.5 + 0.6 * (leaves.x - 0.5),
        y=0.5 + 0.6 * (leaves.y - 0.5),
        radius=np.where(ground, 1e6, leaves.radius),  # so large that it has no light side
        texture=np.where(ground, TEXTURES.index("plain"), leaves.texture),
        colors=np.where(ground[:, None, None], 1.0, leaves.colors),
        roughness=np.where(ground, 0.0, leaves.roughness),
    )
    return _pixels(style._replace(grain=0.0), leaves, generator, size, 2)


def uniforms_of(seed: int, split: int, number: int, count: int) -> np.ndarray:
    """Returns uniform random numbers for a picture, ``(count,)`` in [0, 1). All releases of numpy give the same numbers.

    Args:
        seed: Public seed; another seed gives other numbers.
        split: Split of the picture.
        number: Number of the picture, below 2^32.
        count: Number of uniform numbers.
    """
    return _uniforms(_generator(seed, split, number), count)


def _generator(seed: int, split: int, number: int) -> np.random.Philox:
    return np.random.Philox(key=np.array([seed, (split << 32) | number], np.uint64))


def _drawn(seed: int, split: int, number: int) -> tuple[_Style, _Leaves, np.random.Philox]:
    """Draws the style and the leaves of a picture; returns them with the generator for the picture's further draws."""
    generator = _generator(seed, split, number)
    # Raw words, because numpy keeps those the same from release to release, unlike its distributions.
    uniforms = _uniforms(generator, _STYLE + (_LEAVES + _FRONT) * _PER_LEAF)
    return *_compose(uniforms[:_STYLE], uniforms[_STYLE:].reshape(_LEAVES + _FRONT, _PER_LEAF)), generator


def _pixels(style: _Style, leaves: _Leaves, generator: np.random.Philox, size: int, finer: int) -> np.ndarray:
    """Returns the pixels of a picture, ``(size, size, 3)`` uint8.

    So that edges are smooth, the picture is drawn `finer` times as large, and then each block of `finer` x `finer` pixels is
    averaged.
    """
    fine = size * finer
    pixels = _paint(style, leaves, fine, _noise(generator, fine, style.spectrum))
    pixels = pixels.reshape(size, finer, size, finer, 3).mean((1, 3))
    pixels += style.grain * (_uniforms(generator, size * size * 3).reshape(size, size, 3) - 0.5)
    return np.ascontiguousarray(np.rint(255 * pixels).clip(0, 255), np.uint8)


def _uniforms(generator: np.random.Philox, count: int) -> np.ndarray:
    return (generator.random_raw(count) >> np.uint64(11)) * 2.0**-53


def _compose(u: np.ndarray, each: np.ndarray) -> tuple[_Style, _Leaves]:
    """Makes a style, and leaves in this style, from uniform random numbers.

    Args:
        u: Numbers for the style, in [0, 1).
        each: Numbers for the leaves, one row for each leaf, in [0, 1).
    """
    count = int(6 + (_LEAVES - 5) * u[0] ** 1.5)
    light = 2 * np.pi * u[1]
    style = _Style(
        behind=count,
        least=0.03 + 0.09 * u[2],
        power=1.2 + 1.6 * u[3],
        palette=_pick(u[4:10], len(COLORS)),  # four behind; the last two are those of the leaves in front
        spectrum=0.8 + 0.8 * u[10],
        light=np.array([np.cos(light), np.sin(light)]),
        shading=0.7 * u[11],
        grain=0.06 * u[12] ** 2,
    )
    n, front = count + _FRONT, np.arange(count + _FRONT) >= count
    each = np.concatenate([each[:count], each[-_FRONT:]])
    most = 0.2 + 0.35 * u[13]
    radius = _power_law(each[:, 0], style.least, max(most, 2 * style.least), style.power)
    radius[front] = 0.14 + 0.2 * each[front, 0]
    x, y = each[:, 1] * 1.2 - 0.1, each[:, 2] * 1.2 - 0.1
    place = _pick(u[14], len(PLACES))  # where the leaf in front lies, seen from the other one
    away = np.array([(-1, 0), (0, -1), (1, 0), (0, 1)])[place] * (0.16 + 0.1 * u[15])
    x[front] = 0.5 + np.array([-1, 1]) * away[0] + 0.16 * (each[front, 1] - 0.5)
    y[front] = 0.5 + np.array([-1, 1]) * away[1] + 0.16 * (each[front, 2] - 0.5)
    # Two kinds of shapes and two of textures in most leaves, and any in the others.
    shape = np.where(each[:, 3] < 0.8, _pick(u[16:18], len(SHAPES))[_pick(each[:, 4], 2)], _pick(each[:, 4], len(SHAPES)))
    texture = np.where(each[:, 5] < 0.8, _pick(u[18:20], len(TEXTURES))[_pick(each[:, 6], 2)], _pick(each[:, 6], len(TEXTURES)))
    shape[front], texture[front] = _pick(each[front, 4], len(SHAPES)), _pick(each[front, 6], len(TEXTURES))
    kinds = 1 + _pick(u[20], 4)  # colours of the leaves behind
    color = style.palette[:4][_pick(each[:, 7], kinds)]
    color[0], color[front] = style.palette[0], style.palette[4:]  # what is behind everything has the first
    first = _rgb(color, each[:, 8:11])
    # The second colour: of the same name, of the palette, or darker.
    second = _rgb(style.palette[:4][_pick(each[:, 11], 4)], each[:, [9, 10, 8]])
    darker = first * (0.25 + 0.5 * each[:, 12:13])
    second = np.where(each[:, 12:13] < 0.5, darker, second)
    along = 2 * np.pi * u[21] + np.where(each[:, 13] < 0.6, 0, 2 * np.pi * each[:, 13])
    regular = np.isin(shape, [SHAPES.index("disc"), SHAPES.index("polygon"), SHAPES.index("star")])
    leaves = _Leaves(
        x=x,
        y=y,
        radius=radius,
        aspect=np.where(regular, 1.0, 0.4 + 0.35 * each[:, 14]),
        turn=2 * np.pi * each[:, 15],
        shape=shape,
        sides=5 + _pick(each[:, 16], 3),
        texture=texture,
        colors=np.stack([first, second], axis=1),
        frequency=np.exp(np.log(3.0) + np.log(4.0) * (0.6 * u[22] + 0.4 * each[:, 17])),
        angle=along,
        phase=each[:, 18:20],
        sharpness=np.full(n, 0.8 + 3 * u[23]),
        roughness=np.full(n, 0.25 * u[24]),
    )
    return style, leaves


def _pick(uniform: np.ndarray | np.float64, options: int | np.int64) -> Any:
    """Maps uniform numbers in [0, 1) to option numbers 0 .. `options` - 1, which are all equally likely."""
    return np.int64(uniform * options)


def _power_law(uniform: np.ndarray, least: float, most: float, power: float) -> np.ndarray:
    """Maps uniform numbers to numbers r from `least` to `most`, whose density is proportional to r ** -(`power` + 1)."""
    low, high = least**-power, most**-power
    return (low + uniform * (high - low)) ** (-1 / power)


def _rgb(color: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Chooses, for each of n indices in `COLORS`, one of the many colours of that name; returns RGB, ``(n, 3)`` in [0, 1]."""
    low, high = _COLORS[color, :, 0], _COLORS[color, :, 1]
    hue, saturation, value = (low + uniform ** [1, 2, 1] * (high - low)).T  # pale colours are more frequent
    # Foley and van Dam: each channel is the value, less what the saturation takes from it.
    sextant = (hue[:, None] * 6 + np.array([5.0, 3.0, 1.0])) % 6
    return value[:, None] * (1 - saturation[:, None] * np.clip(np.minimum(sextant, 4 - sextant), 0, 1))


@functools.lru_cache(maxsize=4)
def _frequencies(side: int) -> np.ndarray:
    across, down = np.fft.rfftfreq(side) * side, np.fft.fftfreq(side) * side
    frequencies = np.hypot(across[None], down[:, None])
    frequencies[0, 0] = np.inf  # no constant part
    return frequencies


def _noise(generator: np.random.Philox, side: int, power: float) -> np.ndarray:
    """Draws periodic noise, ``(side, side)`` float32 of mean 0 and variance 1.

    The amplitude at frequency f is proportional to f ** -`power`.
    """
    frequencies = _frequencies(side)
    phases = 2 * np.pi * _uniforms(generator, frequencies.size).reshape(frequencies.shape)
    field = np.fft.irfft2(frequencies**-power * np.exp(1j * phases), s=(side, side))
    return (field / field.std()).astype(np.float32)


def _paint(style: _Style, leaves: _Leaves, side: int, noise: np.ndarray) -> np.ndarray:
    """Paints a picture: first finds which leaf is seen at each pixel, then computes the colours of all pixels together.

    Returns:
        Colours, ``(side, side, 3)`` in about [0, 1].
    """
    seen = _cover(leaves, side)
    n = len(leaves.x)
    per_leaf = np.empty((n, 20), np.float32)
    per_leaf[:, 0:3], per_leaf[:, 3:6] = leaves.colors[:, 0], leaves.colors[:, 1] - leaves.colors[:, 0]
    cosine, sine = 2 * np.pi * leaves.frequency * np.stack([np.cos(leaves.angle), np.sin(leaves.angle)])
    per_leaf[:, 6], per_leaf[:, 7], per_leaf[:, 8], per_leaf[:, 9] = cosine, sine, *(2 * np.pi * leaves.phase.T)
    per_leaf[:, 10:16] = _weights(leaves)
    light = style.light / leaves.radius[:, None]
    per_leaf[:, 16:18] = light
    per_leaf[:, 18] = -(light * np.stack([leaves.x, leaves.y], axis=1)).sum(1)
    per_leaf[:, 19] = leaves.roughness
    here = np.take(np.ascontiguousarray(per_leaf.T), seen, axis=1)  # (20, side, side)
    at = (np.arange(side, dtype=np.float32) + np.float32(0.5)) / side
    x, y = at[None, :], at[:, None]
    first, second = np.sin(x * here[6] + y * here[7] + here[8]), np.sin(y * here[6] - x * here[7] + here[9])
    shade = x * here[16] + y * here[17] + here[18]  # -1 .. 1 from one edge of a leaf to the other
    shift = (leaves.phase * side).astype(np.int64)[seen]
    rows = np.arange(side)
    rough = noise[(rows[:, None] + shift[..., 0]) % side, (rows[None, :] + shift[..., 1]) % side]
    mix = here[10] + here[11] * shade + here[12] * first + here[13] * (first * second) + here[14] * (first + second - 0.7)
    mix = np.clip(mix + here[15] * rough, 0, 1)
    tone = 1 + np.float32(style.shading) * np.clip(shade, -1, 1) * np.float32(0.5) + here[19] * rough
    return (here[0:3] + mix * here[3:6]).transpose(1, 2, 0) * tone[..., None]


def _weights(leaves: _Leaves) -> np.ndarray:
    """Returns six weights for each leaf, ``(n, 6)``, which say how the leaf's texture mixes its two colours.

    The fraction of the second colour at a pixel is the weighted sum of six terms, limited to 0 .. 1: a constant, a gradient,
    stripes, checks, dots and noise.
    """
    sharp = leaves.sharpness
    none, half = np.zeros_like(sharp), np.full_like(sharp, 0.5)
    table = np.array(
        [
            [none, none, none, none, none, none],
            [half, half, none, none, none, none],
            [half, none, sharp, none, none, none],
            [half, none, none, 2 * sharp, none, none],
            [none, none, none, none, sharp, none],
            [half, none, none, none, none, half * 0.8],
        ]
    )
    return table[leaves.texture, :, np.arange(len(sharp))]


def _cover(leaves: _Leaves, side: int) -> np.ndarray:
    """Returns the number of the leaf that is seen at each pixel, ``(side, side)`` int64; leaf 0 is the ground."""
    seen = np.zeros((side, side), np.int64)
    at = (np.arange(side) + 0.5) / side
    start = np.floor(np.stack([leaves.x, leaves.y]) * side - leaves.radius * side).clip(0, side).astype(int)
    end = np.ceil(np.stack([leaves.x, leaves.y]) * side + leaves.radius * side).clip(0, side).astype(int)
    cosine, sine = np.cos(leaves.turn), np.sin(leaves.turn)
    for leaf in range(1, len(leaves.x)):
        columns, rows = slice(start[0, leaf], end[0, leaf]), slice(start[1, leaf], end[1, leaf])
        x, y = (at[columns] - leaves.x[leaf])[None, :], (at[rows] - leaves.y[leaf])[:, None]
        along = (x * cosine[leaf] + y * sine[leaf]) / leaves.radius[leaf]
        across = (y * cosine[leaf] - x * sine[leaf]) / (leaves.radius[leaf] * leaves.aspect[leaf])
        seen[rows, columns][_inside(SHAPES[leaves.shape[leaf]], int(leaves.sides[leaf]), along, across)] = leaf
    return seen


def _inside(shape: str, sides: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns for each point (x, y) whether it lies in a shape of radius 1 around the origin."""
    if shape in ("disc", "ellipse"):
        return x * x + y * y < 1
    if shape == "star":
        radius = np.hypot(x, y)
        return radius < 0.72 + 0.28 * np.cos(sides * np.arctan2(y, x))
    sides = _SIDES.get(shape, sides)
    corners = 2 * np.pi * np.arange(sides)[:, None, None] / sides
    return (x * np.cos(corners) + y * np.sin(corners)).max(0) < np.cos(np.pi / sides)


def _caption(style: _Style, leaves: _Leaves) -> str:
    def named(leaf: int) -> str:
        size = "large" if leaves.radius[leaf] > 0.24 else "small"
        color, shape = _NAMES[style.palette[leaf]], SHAPES[leaves.shape[leaf]]
        return f"a {size} {TEXTURES[leaves.texture[leaf]]} {color} {shape}"

    across, down = leaves.x[-1] - leaves.x[-2], leaves.y[-1] - leaves.y[-2]
    place = PLACES[(0 if across < 0 else 2) if abs(across) > abs(down) else (1 if down < 0 else 3)]
    kind = SHAPES[np.bincount(leaves.shape[1:-_FRONT], minlength=len(SHAPES)).argmax()]
    many = "many" if style.behind > 24 else "some"
    return f"{named(-1)} {place} {named(-2)} on {many} {_NAMES[style.palette[0]]} {kind}s"
