"""Public pictures and public words that do not belong together: what a basis of towers is made of, where nothing else is given.

The pictures are dead leaves (`dpfed.data.generated.dead_leaves`), the words names of things (`dpfed.data.generated.words`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from dpfed.data.generated.dead_leaves import VERSION, draw
from dpfed.data.generated.procedural import LARGEST, ImportProgress
from dpfed.data.generated.words import public_words
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore, open_or_write
from dpfed.data.store.writing import StoreWriter

NAME = "things"
_SEED = 2**32 - 3  # other pictures than any generated data set, or public set, holds


def things_store(records: int, folder: str | Path, size: int, progress: ImportProgress | None = None) -> RecordStore:
    """A public store of pictures, each with a word that has nothing to do with it; generated on first use.

    Args:
        records: so many.
        folder: where the store is kept.
        size: side of the images, pixels; above `LARGEST` the store has images of that side.
        progress: called while they are generated.

    Raises:
        UserError: when the store cannot be written or is damaged.
    """
    side, words = min(size, LARGEST), public_words(records)
    digest = hashlib.blake2b("\n".join(words).encode(), digest_size=4).hexdigest()  # another version of timm has other words

    def write(target: Path) -> None:
        with StoreWriter(target, name=NAME, kind="image-text", size=side, public=True) as writer:
            for number in range(records):
                picture = draw(_SEED, 0, number, side).pixels
                writer.add(RecordInput(str(number), picture, (words[number % len(words)],), split="train"))
                if progress is not None and (number + 1) % 100 == 0:
                    progress(number + 1, records)

    return open_or_write(Path(folder) / f"{NAME}-v{VERSION}-{side}px-{records}-{digest}", write)
