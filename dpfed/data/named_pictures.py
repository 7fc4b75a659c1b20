"""Pictures with names, as input of a command: the pictures of a record store, or image files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpfed.data.decoding import BrokenImage, decode, decoders
from dpfed.data.importers.access import Access, NotRead
from dpfed.data.importers.listing import list_files
from dpfed.data.resizing import square
from dpfed.data.store.records import RecordStore
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.paths import is_store, path_of

if TYPE_CHECKING:
    from torch import Tensor


class StoredPictures:
    """The pictures of some or all records of a store, numbered by their positions in `rows`.

    Args:
        store: Record store.
        rows: Rows of these records in the store, ``(n,)``; ``None``: all records.
    """

    def __init__(self, store: RecordStore, rows: np.ndarray | None = None) -> None:
        self._store, self._rows = store, np.arange(len(store)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def names(self, numbers: np.ndarray) -> list[str]:
        """Returns the ids of the records with the given numbers."""
        return self._store.ids(self._rows[numbers])

    def units(self, numbers: np.ndarray) -> np.ndarray | None:
        """Returns the units' keys of the records with the given numbers, ``(n,)`` uint64; ``None``: there are no units."""
        return None if self._store.units is None else self._store.units[self._rows[numbers]]

    def captions(self, numbers: np.ndarray) -> list[list[str]]:
        """Returns the captions of the records with the given numbers."""
        return self._store.captions(self._rows[numbers])

    @property
    def captioned(self) -> bool:
        """Whether the records have captions."""
        return self._store.kind == "image-text"

    def squares(self, numbers: np.ndarray, size: int, how: Preprocessing) -> Tensor:
        """Returns pictures as a model sees them, before normalisation: ``(n, 3, size, size)`` uint8.

        Args:
            numbers: Numbers of the records, ``(n,)``.
            size: Side of the result, pixels.
            how: Preprocessing that makes pictures square.

        Raises:
            UserError: If an image cannot be decoded.
        """
        return self._store.images(self._rows[numbers], size, how.resize, how.interpolation)


class PictureFiles:
    """The pictures of image files, numbered by their positions in `files`.

    Args:
        files: Paths of the image files.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def names(self, numbers: np.ndarray) -> list[str]:
        """Returns the paths of the files with the given numbers."""
        return [str(self._files[number]) for number in numbers]

    def units(self, numbers: np.ndarray) -> None:
        """Returns ``None``: files have no units; see `StoredPictures.units`."""

    def squares(self, numbers: np.ndarray, size: int, how: Preprocessing) -> Tensor:
        """Returns pictures as a model sees them, before normalisation; see `StoredPictures.squares`.

        Raises:
            UserError: If a file cannot be read or decoded.
        """
        import torch

        def read(number: int) -> np.ndarray:
            file = self._files[number]
            try:
                return square(decode(Access.to(file, outside=True).read(file)), size, how.resize, how.interpolation)
            except (NotRead, BrokenImage) as error:
                raise UserError(
                    f"{file} cannot be read as an image ({error}): repair or remove it. [image-unreadable]"
                ) from error

        return torch.from_numpy(np.stack(list(decoders().map(read, numbers.tolist()))))


NamedPictures = StoredPictures | PictureFiles


def pictures_at(places: Sequence[Path], split: str | None = None) -> NamedPictures:
    """Opens the pictures of one record store, or of image files. A folder stands for all image files below it.

    Args:
        places: Path of one store, or paths of image files and folders.
        split: Split of the store, such as ``train``; ``None``: all splits.

    Raises:
        UserError: If there are no pictures, a path does not exist or is not valid, a store cannot be opened or is given beside
            other paths, or `split` is unknown or given without a store.
    """
    for place in places:
        path_of(place, "the pictures")
    if stores := [place for place in places if is_store(place)]:
        if len(places) > 1:
            raise UserError(f"{stores[0]} is a record store: give it alone, or only images and folders. [image-store-beside]")
        store = RecordStore.open(stores[0])
        rows = None if split is None else store.split(split)
        if rows is not None and not len(rows):
            raise UserError(f"{stores[0]} has no {split} records: choose another --split. [image-split-empty]")
        return StoredPictures(store, rows)
    if split is not None:
        raise UserError(f"only record stores have splits: leave --split {split} out. [image-split]")
    files: list[Path] = []
    for place in places:
        if not place.exists():
            raise UserError(f"{place} does not exist: give a record store, or images and folders of them. [image-path-missing]")
        files += list_files(place, Access.to(place)).images() if place.is_dir() else [place]
    if not files:
        raise UserError(f"no images in {', '.join(map(str, places))}: give a record store or folder of images. [image-nothing]")
    return PictureFiles(files)
