"""Makes captioned scenes: four labelled images in a square, and a caption that names their classes.

So a labelled data set, such as CIFAR-10, becomes a data set of images with texts: "a cat and a truck above a ship and a dog".
No image is in two scenes, so a scene is a record like any other. Which images form a scene depends only on the labelled
records and on the half of their classes that is used.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from dpfed.data.options import DataConfig
from dpfed.data.store.layout import HEADER
from dpfed.data.store.record import SPLITS, RecordInput
from dpfed.data.store.records import RecordStore, open_or_write
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError

_VERSION = 1  # part of the hash in the folder's name: changed scenes must not reuse older ones
_SEED = 0
_MOST_HELD_OUT = 1000  # scenes of a held-out split: retrieval among them is then comparable between data sets
_LARGEST_CELL = 112  # pixels; larger images are made smaller, so that a scene has at most 224 x 224
_BLOCK = 256  # scenes put together at a time
_HALVES = ("all", "first", "second")
# Many copies of CIFAR-10 number its classes and leave out what the numbers mean.
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def scenes_store(config: DataConfig, open_labelled: Callable[[], RecordStore]) -> RecordStore:
    """Opens the store of scenes of a labelled data set. On first use, the scenes are made.

    Scenes of a split are made of images of this split. The classes are those of the first label. A held-out split has at most
    1,000 scenes, and no two of them have the same caption. So every caption has one right picture.

    Args:
        config: Section ``[data]``: ``half`` says which classes are used (the ``"first"`` or the ``"second"`` half, or
            ``"all"``), and ``stores`` is the folder that keeps the store of scenes.
        open_labelled: Function that opens the labelled records.

    Returns:
        A store of images with texts, which is public if the labelled store is. A scene is twice as wide and high as each of its
        four images.

    Raises:
        UserError: If `open_labelled` raises one, the records have no labels or are too few, or the store cannot be written or
            is damaged.
    """
    labelled = open_labelled()
    if not labelled.label_names:
        raise UserError(
            f"data.source = 'scenes' makes captions of class names, but the records of {labelled.name} have no labels: choose "
            "a labelled data set, such as CIFAR-10. [generated-no-labels]"
        )
    # A short hash of everything that the scenes depend on; the labelled store never changes once it is written.
    facts = _VERSION, str(labelled.path), (labelled.path / HEADER).stat().st_mtime_ns, config.half
    path = Path(config.stores) / f"scenes-{hashlib.blake2b(repr(facts).encode(), digest_size=6).hexdigest()}"
    return open_or_write(path, lambda target: _write(target, labelled, config.half))


def _write(path: Path, labelled: RecordStore, half: str) -> None:
    label, names = next(iter(labelled.label_names.items()))
    if "cifar10" in labelled.name.lower().replace("-", "") and names == list(map(str, range(len(_CIFAR10)))):
        names = list(_CIFAR10)
    classes = {"all": range(len(names)), "first": range(len(names) // 2), "second": range(len(names) // 2, len(names))}[half]
    side = _side(labelled)
    name = f"{labelled.name}-scenes" + ("" if half == "all" else f"-{half}")
    nouns = [name.replace("_", " ") for name in names]
    words = [f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}" for noun in nouns]
    with StoreWriter(path, name=name, kind="image-text", size=2 * side, public=labelled.public) as writer:
        for split in SPLITS:
            indices = labelled.split(split)
            indices = indices[np.isin(labelled.labels[label][indices], classes)]
            if split == "train" and len(indices) < 4:
                raise UserError(
                    f"a scene needs four images, but {labelled.name} has {len(indices)} training images in the classes that "
                    f"data.half = '{half}' selects: use a data set with more records, or another half. [generated-few-images]"
                )
            scenes = _compose(indices, split, half)
            captions = [
                "{} and {} above {} and {}".format(*(words[number] for number in scene))
                for scene in labelled.labels[label][scenes].tolist()
            ]
            if split != "train":
                first = dict(zip(reversed(captions), reversed(range(len(captions))), strict=True))  # caption -> first scene
                kept = sorted(first.values())[:_MOST_HELD_OUT]
                scenes, captions = scenes[kept], [captions[number] for number in kept]
            for record in _records(labelled, scenes, captions, split, side):
                writer.add(record)


def _compose(indices: np.ndarray, split: str, half: str) -> np.ndarray:
    """Distributes the indices of n images at random over scenes of four images; up to three images are left over.

    Returns:
        Indices of each scene's images, ``(n // 4, 4)``: upper left, upper right, lower left, lower right.
    """
    # Raw words of Philox, because numpy keeps these the same from release to release, unlike its permutations.
    generator = np.random.Philox(key=np.array([_SEED, len(SPLITS) * _HALVES.index(half) + SPLITS.index(split)], np.uint64))
    order = np.argsort(generator.random_raw(len(indices)), kind="stable")
    return indices[order[: len(indices) // 4 * 4]].reshape(-1, 4)


def _records(labelled: RecordStore, scenes: np.ndarray, captions: list[str], split: str, side: int) -> Iterator[RecordInput]:
    for start in range(0, len(scenes), _BLOCK):
        block = scenes[start : start + _BLOCK]
        images = labelled.images(block.ravel(), side).numpy().reshape(-1, 2, 2, 3, side, side)
        pictures = images.transpose(0, 1, 4, 2, 5, 3).reshape(-1, 2 * side, 2 * side, 3)
        ids = np.array(labelled.ids(block.ravel())).reshape(-1, 4)
        for names, picture, caption in zip(ids, pictures, captions[start : start + _BLOCK], strict=True):
            yield RecordInput(" + ".join(names), picture, (caption,), split=split)


def _side(labelled: RecordStore) -> int:
    """Returns the side of the four images of a scene, pixels, at most 112.

    It is the side of the stored square images; if original files are stored, it is the shorter side of the first image.
    """
    if labelled.size is not None:
        return min(labelled.size, _LARGEST_CELL)
    [original] = labelled.encoded(np.array([0]))
    with Image.open(io.BytesIO(original)) as image:
        return min(*image.size, _LARGEST_CELL)
