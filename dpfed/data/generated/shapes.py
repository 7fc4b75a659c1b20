"""Generates captioned shapes: a data set with which everything can be tried without a download.

An image of 32 x 32 pixels shows two objects, each with a size, a colour and a shape, in a spatial relation on a background. The
caption says so. A record is a function of the seed, the half of the colours, its split and its position in the split. It does
not depend on how many others are generated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpfed.data.store.record import SPLITS, RecordInput
from dpfed.data.store.records import RecordStore, open_or_write
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError

SIDE = 32
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
SIZES = {"small": 3.5, "large": 6.0}  # half extent, pixels
COLORS = {
    "red": (215, 35, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 225),
    "yellow": (240, 215, 45),
    "orange": (245, 135, 25),
    "purple": (135, 50, 170),
    "pink": (250, 140, 190),
    "cyan": (50, 205, 220),
}
BACKGROUNDS = {"black": (12, 12, 12), "white": (242, 242, 242), "gray": (128, 128, 128), "brown": (88, 56, 32)}
RELATIONS = ("left of", "above", "right of", "below")  # the second half mirrors the first

_VERSION = 1  # part of the folder's name: a changed generator must not reuse older records
_BLOCK = 512  # records drawn together
_DRAWS = 20  # uniforms per record
_HALVES = {"all": (0, len(COLORS)), "first": (0, 4), "second": (4, len(COLORS))}  # range of the colors of both objects
_MOST_HELD_OUT = 0.55  # part of all different scenes (72,960 with all colors): drawing new ones gets slow as they run out


@dataclass(frozen=True)
class _Scenes:
    """What n = `_BLOCK` pictures show. Each picture shows two objects; a ``(n, 2)`` array has one column for each object."""

    size: np.ndarray  # (n, 2) 0 small, 1 large
    color: np.ndarray  # (n, 2)
    shape: np.ndarray  # (n, 2)
    relation: np.ndarray  # (n,)
    background: np.ndarray  # (n,)
    jitter: np.ndarray  # (n, _DRAWS - 8) uniforms that the caption does not mention
    noise: np.ndarray  # (n, SIDE, SIDE, 3) float32, gray levels

    def caption(self, row: int) -> str:
        sizes, colors = tuple(SIZES), tuple(COLORS)
        first, second = (
            f"a {sizes[self.size[row, i]]} {colors[self.color[row, i]]} {SHAPES[self.shape[row, i]]}" for i in (0, 1)
        )
        return f"{first} {RELATIONS[self.relation[row]]} {second} on a {tuple(BACKGROUNDS)[self.background[row]]} background"

    def meaning(self) -> np.ndarray:
        """Returns a number for each picture's caption, ``(n,)``.

        The numbers are equal if the captions are true of the same pictures, as "A left of B" and "B right of A" are.
        """
        objects = (self.size * len(COLORS) + self.color) * len(SHAPES) + self.shape
        mirrored = self.relation >= 2
        first, second = np.where(mirrored, objects[:, 1], objects[:, 0]), np.where(mirrored, objects[:, 0], objects[:, 1])
        return ((first * 96 + second) * 2 + self.relation % 2) * len(BACKGROUNDS) + self.background


def write_shapes(path: str | Path, train: int, validation: int, test: int, seed: int = 0, half: str = "all") -> None:
    """Generates a store of captioned shapes.

    Within the validation split, and within the test split, no two captions are true of the same pictures, so every caption has
    one right picture.

    Args:
        path: Path of the store to create.
        train: Number of training records.
        validation: Number of validation records.
        test: Number of test records.
        seed: Public seed; another seed gives other records.
        half: Colors of both objects: the ``"first"`` four, the ``"second"`` four or ``"all"``. No scene belongs to both
            halves, and the records of the halves are drawn independently of each other.

    Raises:
        UserError: If the store exists or cannot be written, or the records requested for a held-out split are more than 55 % of
            all different scenes, because drawing new scenes becomes slow as they run out.
    """
    names = {"shape": SHAPES, "color": tuple(COLORS)}
    counts = dict(zip(SPLITS, (train, validation, test), strict=True))
    first, end = _HALVES[half]
    objects = len(SIZES) * (end - first) * len(SHAPES)
    most = int(_MOST_HELD_OUT * (objects * (objects - 1) * len(RELATIONS) // 2 * len(BACKGROUNDS)))
    for split in SPLITS[1:]:
        if counts[split] > most:
            raise UserError(
                f"{counts[split]:,} {split} records of captioned shapes were requested, and no two of them may show the same "
                f"scene: request at most {most:,}. [generated-shapes]"
            )
    with StoreWriter(path, name=_name(half), kind="image-text", size=SIDE, public=True, label_names=names) as writer:
        for split, count in counts.items():
            for record in _records(split, count, seed, half):
                writer.add(record)


def shapes_store(
    records: int, folder: str | Path, validation: int = 0, test: int = 1000, half: str = "all", seed: int = 0
) -> RecordStore:
    """Opens the store of captioned shapes, which is generated on first use.

    Args:
        records: Number of training records.
        folder: Folder that keeps the store.
        validation: Number of validation records.
        test: Number of test records.
        half: Colors of both objects; see `write_shapes`.
        seed: Public seed; another seed gives other records.

    Raises:
        UserError: If `write_shapes` raises one, or the store is damaged.
    """
    path = Path(folder) / f"{_name(half)}-v{_VERSION}-{records}-{validation}-{test}{f'-seed-{seed}' * bool(seed)}"
    return open_or_write(path, lambda target: write_shapes(target, records, validation, test, seed, half))


def _name(half: str) -> str:
    return "shapes" if half == "all" else f"shapes-{half}"


def _records(split: str, count: int, seed: int, half: str) -> Iterator[RecordInput]:
    """Yields the first `count` records of a split. In a held-out split, records whose caption says nothing new are skipped."""
    position, seen, block = 0, set(), 0
    while position < count:
        scenes = _draw(seed, split, block, half)
        meanings = scenes.meaning().tolist()
        pictures = _paint(scenes)
        for row in range(_BLOCK):
            if position == count:
                return
            if split != "train":
                if meanings[row] in seen:
                    continue
                seen.add(meanings[row])
            labels = {"shape": int(scenes.shape[row, 0]), "color": int(scenes.color[row, 0])}
            yield RecordInput(f"{split}/{position}", pictures[row], (scenes.caption(row),), labels, split)
            position += 1
        block += 1


def _draw(seed: int, split: str, block: int, half: str) -> _Scenes:
    # Raw words of Philox, because numpy keeps those the same from release to release, unlike its distributions.
    stream = (tuple(_HALVES).index(half) << 40) | (SPLITS.index(split) << 32) | block
    generator = np.random.Philox(key=np.array([seed, stream], np.uint64))
    uniform = (generator.random_raw(_BLOCK * _DRAWS) >> np.uint64(11)).reshape(_BLOCK, _DRAWS) * 2.0**-53
    pixels = _BLOCK * SIDE * SIDE * 3
    levels = generator.random_raw(pixels // 4).view(np.uint8).reshape(2, _BLOCK, SIDE, SIDE, 3)

    def pick(columns: slice | int, options: int) -> np.ndarray:
        return (uniform[:, columns] * options).astype(np.int64)

    first_color, end_color = _HALVES[half]
    colors = end_color - first_color
    per_object = len(SIZES) * colors * len(SHAPES)
    first = pick(0, per_object)
    second = (first + 1 + pick(1, per_object - 1)) % per_object  # never twice the same object
    objects = np.stack([first, second], axis=1)
    return _Scenes(
        size=objects // (colors * len(SHAPES)),
        color=objects // len(SHAPES) % colors + first_color,
        shape=objects % len(SHAPES),
        relation=pick(2, len(RELATIONS)),
        background=pick(3, len(BACKGROUNDS)),
        jitter=uniform[:, 8:],
        noise=(levels[0].astype(np.float32) + levels[1] - 255) * np.float32(4 / 104),  # triangular, standard deviation 4
    )


def _paint(scenes: _Scenes) -> np.ndarray:
    """Paints what the given scenes describe; returns the pictures, ``(n, SIDE, SIDE, 3)`` uint8."""
    spread = (2 * scenes.jitter - 1).astype(np.float32)  # (n, 12), in [-1, 1)
    ground = np.array(list(BACKGROUNDS.values()), np.float32)[scenes.background] * (1 + 0.06 * spread[:, :1])
    canvas = np.broadcast_to(ground[:, None, None], (len(ground), SIDE, SIDE, 3)).copy()
    along = np.array([-1, -1, 1, 1], np.float32)[scenes.relation] * 8  # where the first object stands on the relation's axis
    vertical = (scenes.relation % 2 == 1)[:, None]
    for i, sign in ((0, 1), (1, -1)):
        wiggle = spread[:, 2 + 5 * i : 7 + 5 * i]  # along, across, radius, brightness, tint
        on_axis, off_axis = 16 + sign * along + wiggle[:, 0], 16 + 3 * wiggle[:, 1]
        center = np.stack([on_axis, off_axis], axis=1)
        center = np.where(vertical, center[:, ::-1], center)
        radius = np.array(list(SIZES.values()), np.float32)[scenes.size[:, i]] * (1 + 0.07 * wiggle[:, 2])
        color = np.array(list(COLORS.values()), np.float32)[scenes.color[:, i]] * (1 + 0.1 * wiggle[:, 3:4])
        color = color + 8 * wiggle[:, 4:5] * np.array([1, 0, -1], np.float32)
        cover = _coverage(scenes.shape[:, i], center, radius)[..., None]
        canvas += cover * (color[:, None, None] - canvas)
    return np.rint(canvas + scenes.noise).clip(0, 255).astype(np.uint8)


def _coverage(shape: np.ndarray, center: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Returns which fraction of each pixel an object covers, ``(n, SIDE, SIDE)`` float32.

    The fraction is 1/2 minus the signed distance from the pixel's centre to the object's outline, limited to 0 .. 1.
    """
    pixel = np.arange(SIDE, dtype=np.float32) + np.float32(0.5)
    cover = np.empty((len(shape), SIDE, SIDE), np.float32)
    for number, name in enumerate(SHAPES):
        rows = np.flatnonzero(shape == number)
        x = pixel[None, None, :] - center[rows, 0, None, None]
        y = pixel[None, :, None] - center[rows, 1, None, None]
        distance = _distance(name, x, y, radius[rows, None, None])
        cover[rows] = np.clip(np.float32(0.5) - distance, 0, 1)
    return cover


def _distance(name: str, x: np.ndarray, y: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Returns the signed distance from each point to an object's outline, pixels; negative inside the object.

    For some shapes it is exact only near straight edges; elsewhere, its absolute value is a lower bound of the distance.

    Args:
        name: Name of the shape.
        x: Distance of the point to the right of the object's centre, pixels; negative to the left.
        y: Distance of the point below the object's centre, pixels; negative above.
        r: Half extent of the object, pixels.
    """
    ax, ay = np.abs(x), np.abs(y)
    if name == "circle":
        return np.sqrt(x * x + y * y) - r
    if name == "ring":
        return np.abs(np.sqrt(x * x + y * y) - 0.76 * r) - 0.25 * r
    if name == "square":
        return np.maximum(ax, ay) - 0.88 * r
    if name == "diamond":
        return (ax + ay - 1.12 * r) * np.float32(0.5**0.5)
    if name == "cross":
        return np.minimum(np.maximum(ax - r, ay - 0.33 * r), np.maximum(ay - r, ax - 0.33 * r))
    return np.maximum(y - 0.85 * r, (1.85 * ax - y - r) / np.float32(1.85**2 + 1) ** 0.5)  # triangle: base and two sides
