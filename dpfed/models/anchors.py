"""Public anchor images, which stand in every group of a model with BatchNorm (`dpfed.models.norm.AnchoredEncoder`)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from torch import Tensor

from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError

_SEED = 2**32 - 1  # of generated anchors: other shapes than any data set of shapes holds


def anchor_images(path: str | None, count: int, size: int) -> Tensor:
    """Anchors from a public record store, or generated shapes.

    Args:
        path: of a record store that says it is public, of which training records are taken, the same ones every time;
            ``None``: shapes are generated.
        count: M.
        size: side, pixels.

    Returns:
        uint8 ``(M, 3, size, size)``.

    Raises:
        UserError: if the store cannot be opened, is not public, or holds too few training records.
    """
    if path is not None:
        return _from_store(RecordStore.open(Path(path).expanduser()), count, size)
    with tempfile.TemporaryDirectory() as folder:
        write_shapes(f"{folder}/anchors", train=count, validation=0, test=0, seed=_SEED)
        return _from_store(RecordStore.open(f"{folder}/anchors"), count, size)


def _from_store(store: RecordStore, count: int, size: int) -> Tensor:
    if not store.public:
        raise UserError(
            f"model.anchors: the records of {store.path} are not public, and anchors are a part of the released model: give a "
            "store that was imported as public, or leave model.anchors out for generated shapes."
        )
    if store.count("train") < count:
        raise UserError(
            f"model.anchors: {store.path} has {store.count('train'):,} training records, fewer than model.anchor_count = "
            f"{count:,}: lower it, or give another store."
        )
    # By key, because records often lie in the order of their classes.
    return store.images(store.smallest(store.within("train"), count), size)
