"""Generates a store of captioned procedural images. Training on them costs no privacy, because they depend on no data.

`dpfed.data.generated.dead_leaves` draws the images. Starting weights may be trained on them
(`model.start = "procedural"`), and public records may come from them (`public.source = "procedural"`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dpfed.data.generated.dead_leaves import COLORS, SHAPES, TEXTURES, VERSION, draw
from dpfed.data.store.record import SPLITS, RecordInput
from dpfed.data.store.records import RecordStore, open_or_write
from dpfed.data.store.writing import StoreWriter

NAME = "procedural"
LARGEST = 224  # pixels; larger images are scaled up from these
_HELD_OUT = 1000
_PROGRESS_EVERY = 100
ImportProgress = Callable[[int, int | None], None]


def write_procedural(
    path: str | Path, size: int, train: int, test: int, seed: int = 0, progress: ImportProgress | None = None
) -> None:
    """Generates a store of procedural images.

    A record is a function of the seed, the image's side, its split and its number. It does not depend on how many others are
    generated. Within the test split no two records have the same caption, so every caption has one right picture: a picture
    whose caption occurred before is left out, and its number is skipped.

    Args:
        path: Path of the store to create.
        size: Side of the images, pixels.
        train: Number of training records.
        test: Number of test records.
        seed: Public seed; another seed gives other records.
        progress: Function that is called now and then with (records so far, number of all records).

    Raises:
        UserError: If the store exists or cannot be written.
    """
    names = {"shape": SHAPES, "texture": TEXTURES, "color": tuple(COLORS)}
    with StoreWriter(path, name=NAME, kind="image-text", size=size, public=True, label_names=names) as writer:
        done = 0
        for split, count in (("train", train), ("test", test)):
            for record in _records(split, count, seed, size):
                writer.add(record)
                done += 1
                if progress is not None and (done % _PROGRESS_EVERY == 0 or done == train + test):
                    progress(done, train + test)


def procedural_store(
    records: int, folder: str | Path, size: int, test: int | None = None, seed: int = 0, progress: ImportProgress | None = None
) -> RecordStore:
    """Opens the store of procedural images, which is generated on first use.

    Args:
        records: Number of training records.
        folder: Folder that keeps the store.
        size: Side of the images, pixels. If it is above `LARGEST`, the images in the store have the side `LARGEST`.
        test: Number of test records; ``None``: 1,000, or `records` if that is less.
        seed: Public seed; another seed gives other records.
        progress: Function that is called while the images are generated; see `write_procedural`.

    Raises:
        UserError: If the store cannot be written or is damaged.
    """
    side = min(size, LARGEST)
    test = min(_HELD_OUT, records) if test is None else test
    path = Path(folder) / f"{NAME}-v{VERSION}-{side}px-{records}-{test}{f'-seed-{seed}' * bool(seed)}"
    return open_or_write(path, lambda target: write_procedural(target, side, records, test, seed, progress))


def _records(split: str, count: int, seed: int, size: int) -> Iterator[RecordInput]:
    number, given, seen = 0, 0, set()
    while given < count:
        picture = draw(seed, SPLITS.index(split), number, size)
        if split == "train" or picture.caption not in seen:
            seen.add(picture.caption)
            labels = {"shape": picture.shape, "texture": picture.texture, "color": picture.color}
            yield RecordInput(f"{split}/{number}", picture.pixels, (picture.caption,), labels, split)
            given += 1
        number += 1
