"""Keeps features of many records on disk. They are as private as the records, and stay with the party that holds the records.

Each file, called a shard, has the features of up to 4,096 records. The file also contains a hash of its tensors,
because a run may read it months after it was written.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dpfed.files.atomic import remove_drafts, write_atomically

SHARD = 4096  # records in a shard; an interrupted computation loses the work on at most one shard
_IMAGE, _TEXT, _STARTS, _HASH = "image", "text", "starts", "blake2b"


@dataclass(frozen=True)
class Shard:
    """The features of b consecutive records.

    Attributes:
        image: Features of V views of each record's image, ``(b, V, F)`` float32; F: the number of features of an image.
        text: Features of all k captions of these records, ``(k, F_t)`` float32; F_t: the number of features of a caption.
            ``None``: captions are not embedded.
        offsets: Row of each record's first caption in `text`, followed by the number k, ``(b + 1,)`` int64. ``None``: `text` is
            ``None``, too.
    """

    image: Tensor
    text: Tensor | None = None
    offsets: Tensor | None = None

    @functools.cached_property
    def text_means(self) -> Tensor | None:
        """The mean features of each record's captions, ``(b, F_t)`` float32; ``None``: captions are not embedded."""
        if self.text is None or self.offsets is None:
            return None
        counts = self.offsets.diff()
        record = torch.repeat_interleave(torch.arange(len(counts)), counts)
        # The captions of a record are added up in their order in the record, whatever records stand beside it.
        return self.text.new_zeros(len(counts), self.text.shape[1]).index_add_(0, record, self.text) / counts[:, None]


class Features:
    """The features of chosen records of a store, in memory-mapped files: only the features that are used are read.

    As a context manager, this object deletes the files at the end of the ``with`` block, unless `stay` is set or the block
    raises an error. After an error the files remain for the next attempt, unless `keeper` deletes them.

    Args:
        folder: Folder of the shards, which only the current user can read.
        rows: Rows of the store, ``(n,)`` int64, in the order of the features.
        keeper: `tempfile.TemporaryDirectory` that contains `folder`. This temporary directory is deleted when the `Features`
            object is no longer in use. ``None``: `folder` is not temporary.
        stay: Whether the files stay on disk for later runs.

    Attributes:
        rows: Rows of the store, as given.
    """

    def __init__(self, folder: Path, rows: np.ndarray, keeper: object = None, stay: bool = False) -> None:
        self.rows, self._folder, self._keeper, self._stay = rows, folder, keeper, stay
        self._shards: dict[int, Shard] = {}
        self._order = np.argsort(rows, kind="stable")

    def __len__(self) -> int:
        return len(self.rows)

    def __enter__(self) -> Features:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is None and not self._stay:
            self.delete()

    def complete(self, compute: Callable[[np.ndarray, Callable[[int], None]], Shard], progress: Callable[[int], None]) -> None:
        """Computes the shards that are missing or damaged. No other process may write to the folder meanwhile.

        Afterwards all shards are open: they can be read even if another process deletes the files.

        Args:
            compute: Function ``compute(rows, advance)``. It returns the features of the records at `rows` of the store,
                ``(b,)``, and calls ``advance(done)`` with the number of these records that are done.
            progress: Function that is called with the number of records that are done so far, of all shards together.

        Raises:
            OSError: If the folder or a shard cannot be written.
        """
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        remove_drafts(self._folder)
        for number, first in enumerate(range(0, len(self), SHARD)):
            rows = self.rows[first : first + SHARD]
            stored = self._read(number, whole=True)
            if stored is None:
                shard = compute(rows, lambda done, first=first: progress(first + done))  # type: ignore[misc]
                given = {_IMAGE: shard.image, _TEXT: shard.text, _STARTS: shard.offsets}
                tensors = {name: tensor.contiguous() for name, tensor in given.items() if tensor is not None}
                write_atomically(self._path(number), save(tensors, {_HASH: _hash(tensors)}), mode=0o600)
                stored = self._read(number)
            if stored is not None:
                self._shards[number] = stored
            progress(first + len(rows))

    def shards(self) -> Iterator[Shard]:
        """Yields the shards one after another. Their records follow each other in the order of `rows`.

        Raises:
            FileNotFoundError: If the file of a shard is missing or damaged.
        """
        for number in range(-(-len(self) // SHARD)):
            yield self._shard(number)

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Returns the positions in `self.rows` of the given rows of the store, ``(n,)`` int64.

        Args:
            rows: Rows of the store, ``(n,)`` int64. `self.rows` must contain each of them.
        """
        return self._order[np.searchsorted(self.rows, rows, sorter=self._order)]

    def images(self, positions: np.ndarray, views: np.ndarray) -> Tensor:
        """Returns the features of the given views of the given records.

        Args:
            positions: Positions of the records, ``(n,)`` (see `positions`).
            views: Indices of the W wanted views of each record, ``(n, W)``, each below V.

        Returns:
            Features ``(n, W, F)`` float32.

        Raises:
            ValueError: If `positions` is empty.
            FileNotFoundError: If the file of a shard is missing or damaged.
        """
        return self._gather(
            positions, lambda shard, places, chosen: shard.image[places[:, None], torch.from_numpy(views[chosen])]
        )

    def texts(self, positions: np.ndarray, choice: np.ndarray) -> Tensor:
        """Returns the features of one caption of each given record, ``(n, F_t)`` float32.

        Args:
            positions: Positions of the records, ``(n,)`` (see `positions`).
            choice: Number u in [0, 1) for each record, ``(n,)`` float64. It selects caption number floor(u k) of the record's k
                captions, counted from 0.

        Raises:
            ValueError: If `positions` is empty.
            FileNotFoundError: If the file of a shard is missing or damaged.
        """

        def of(shard: Shard, places: Tensor, chosen: np.ndarray) -> Tensor:
            assert shard.text is not None and shard.offsets is not None
            counts = (shard.offsets[places + 1] - shard.offsets[places]).double()
            return shard.text[shard.offsets[places] + (torch.from_numpy(choice[chosen]) * counts).long()]

        return self._gather(positions, of)

    def text_means(self, positions: np.ndarray) -> Tensor:
        """Returns the mean features of the captions of each given record, ``(n, F_t)`` float32.

        Args:
            positions: Positions of the records, ``(n,)`` (see `positions`).

        Raises:
            ValueError: If `positions` is empty.
            FileNotFoundError: If the file of a shard is missing or damaged.
        """

        def of(shard: Shard, places: Tensor, _: np.ndarray) -> Tensor:
            assert shard.text_means is not None
            return shard.text_means[places]

        return self._gather(positions, of)

    def delete(self) -> None:
        """Deletes the files of the features, and their folder."""
        self._shards.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _gather(self, positions: np.ndarray, of: Callable[[Shard, Tensor, np.ndarray], Tensor]) -> Tensor:
        """Applies a function to the given records shard by shard, and returns the results, in the order of `positions`.

        Args:
            positions: Positions of the records in `rows`, ``(n,)``.
            of: Function ``of(shard, places, chosen)`` for k records of one shard. `places`, ``(k,)``, says where these records
                stand within the shard; `chosen`, ``(k,)``, says where they stand within `positions`. The function returns a
                tensor with one row for each of these records.

        Raises:
            ValueError: If there are no positions.
        """
        numbers, result = positions // SHARD, None
        for number in np.unique(numbers):
            chosen = np.flatnonzero(numbers == number)
            part = of(self._shard(int(number)), torch.from_numpy(positions[chosen] % SHARD), chosen)
            if result is None:
                result = part.new_empty(len(positions), *part.shape[1:])
            result[torch.from_numpy(chosen)] = part
        if result is None:
            raise ValueError("expected the position of at least one record, got none")
        return result

    def _shard(self, number: int) -> Shard:
        if number not in self._shards:
            shard = self._read(number)
            if shard is None:
                raise FileNotFoundError(f"{self._path(number)}: this file of features of a frozen tower is missing or damaged")
            self._shards[number] = shard
        return self._shards[number]

    def _read(self, number: int, whole: bool = False) -> Shard | None:
        """Reads a shard from its file. ``None``: the file is missing or damaged, or has a wrong number of records.

        Args:
            number: Number of the shard, from 0.
            whole: Whether to read all of the shard and compare it with the hash in its file; otherwise the file is only mapped.
        """
        records = min(SHARD, len(self) - number * SHARD)
        try:
            with safe_open(self._path(number), "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                written = (file.metadata() or {}).get(_HASH)
            shard = Shard(tensors[_IMAGE], tensors.get(_TEXT), tensors.get(_STARTS))
        except (OSError, SafetensorError, KeyError):
            return None
        fits = len(shard.image) == records and (shard.offsets is None or len(shard.offsets) == records + 1)
        return shard if fits and (not whole or written == _hash(tensors)) else None

    def _path(self, number: int) -> Path:
        return self._folder / shard_name(number)


def shard_name(number: int) -> str:
    """Returns the name of the file of a shard, given its number from 0."""
    return f"{number:06d}.safetensors"


def _hash(tensors: Mapping[str, Tensor]) -> str:
    """Returns the hash of a shard's tensors and their names. The tensors must be contiguous."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().data)
    return digest.hexdigest()
