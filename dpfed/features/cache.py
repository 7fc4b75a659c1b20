"""Features of many records on disk, a shard at a time. They are as private as the records, and never leave their owner.

A shard says the hash of its numbers: it may be read again months after it was written.
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

SHARD = 4096  # records of a shard; an interrupted computation loses no more
_IMAGE, _TEXT, _STARTS, _HASH = "image", "text", "starts", "blake2b"


@dataclass(frozen=True)
class Shard:
    """The features of consecutive records.

    Attributes:
        image: ``(b, V, F)`` float32, V views of each record's image.
        text: ``(k, F_t)`` float32 of all captions of all records; ``None``: captions are not embedded.
        offsets: ``(b + 1,)`` int64 the first caption of each record, and the one behind the last.
    """

    image: Tensor
    text: Tensor | None = None
    offsets: Tensor | None = None

    @functools.cached_property
    def text_means(self) -> Tensor | None:
        """``(b, F_t)`` the mean of each record's captions."""
        if self.text is None or self.offsets is None:
            return None
        counts = self.offsets.diff()
        record = torch.repeat_interleave(torch.arange(len(counts)), counts)
        # One record's captions are added up in their own order, whoever stands beside it.
        return self.text.new_zeros(len(counts), self.text.shape[1]).index_add_(0, record, self.text) / counts[:, None]


class Features:
    """Features of some records of a store, mapped: only what is asked for is read.

    As a context manager it deletes them at the end of the ``with`` block, unless they are to stay, and keeps them for another
    try if the block fails.

    Args:
        folder: Folder of the shards; nobody but the owner can read it.
        rows: ``(n,)`` int64 rows of the store, in the order of the features.
        keeper: Temporary folder, which is deleted with these features.
        stay: Whether the features stay on disk for later runs.

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
        """Computes the shards that are not there yet, or damaged. Nobody else may write them meanwhile.

        All of them are open then: it does not matter if somebody deletes them.

        Args:
            compute: Rows ``(b,)`` of the store -> their features; it tells how many are done.
            progress: Learns how many records are done.

        Raises:
            OSError: If they cannot be written.
        """
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        remove_drafts(self._folder)
        for number, first in enumerate(range(0, len(self), SHARD)):
            own = self.rows[first : first + SHARD]
            found = self._read(number, whole=True)
            if found is None:
                shard = compute(own, lambda done, first=first: progress(first + done))  # type: ignore[misc]
                given = {_IMAGE: shard.image, _TEXT: shard.text, _STARTS: shard.offsets}
                tensors = {name: tensor.contiguous() for name, tensor in given.items() if tensor is not None}
                write_atomically(self._path(number), save(tensors, {_HASH: _hash(tensors)}), mode=0o600)
                found = self._read(number)
            if found is not None:
                self._shards[number] = found
            progress(first + len(own))

    def shards(self) -> Iterator[Shard]:
        """Yields all features, in the order of `rows`."""
        for number in range(-(-len(self) // SHARD)):
            yield self._shard(number)

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Returns the positions of the features of rows of the store."""
        return self._order[np.searchsorted(self.rows, rows, sorter=self._order)]

    def images(self, positions: np.ndarray, views: np.ndarray) -> Tensor:
        """Some views of some records.

        Args:
            positions: ``(n,)``, see `positions`.
            views: ``(n, W)`` which views of each record.

        Returns:
            ``(n, W, F)`` float32.
        """
        return self._gather(positions, lambda shard, own, chosen: shard.image[own[:, None], torch.from_numpy(views[chosen])])

    def texts(self, positions: np.ndarray, choice: np.ndarray) -> Tensor:
        """One caption of each of some records, ``(n, F_t)``; `choice` is ``(n,)`` in [0, 1)."""

        def of(shard: Shard, own: Tensor, chosen: np.ndarray) -> Tensor:
            assert shard.text is not None and shard.offsets is not None
            counts = (shard.offsets[own + 1] - shard.offsets[own]).double()
            return shard.text[shard.offsets[own] + (torch.from_numpy(choice[chosen]) * counts).long()]

        return self._gather(positions, of)

    def text_means(self, positions: np.ndarray) -> Tensor:
        """``(n, F_t)`` the mean of the captions of each of some records."""

        def of(shard: Shard, own: Tensor, _: np.ndarray) -> Tensor:
            assert shard.text_means is not None
            return shard.text_means[own]

        return self._gather(positions, of)

    def delete(self) -> None:
        """Removes them from the disk."""
        self._shards.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _gather(self, positions: np.ndarray, of: Callable[[Shard, Tensor, np.ndarray], Tensor]) -> Tensor:
        numbers, result = positions // SHARD, None
        for number in np.unique(numbers):
            chosen = np.flatnonzero(numbers == number)
            part = of(self._shard(int(number)), torch.from_numpy(positions[chosen] % SHARD), chosen)
            if result is None:
                result = part.new_empty(len(positions), *part.shape[1:])
            result[torch.from_numpy(chosen)] = part
        if result is None:
            raise ValueError("no record was asked for")
        return result

    def _shard(self, number: int) -> Shard:
        if number not in self._shards:
            shard = self._read(number)
            if shard is None:
                raise FileNotFoundError(f"{self._path(number)}: the features of a frozen tower are gone")
            self._shards[number] = shard
        return self._shards[number]

    def _read(self, number: int, whole: bool = False) -> Shard | None:
        """A shard that was written whole, of as many records as belong to it; ``None``: it is to be computed.

        Args:
            number: Number of the shard, from 0.
            whole: All of it is read and held against its hash; otherwise it is only mapped.
        """
        records = min(SHARD, len(self) - number * SHARD)
        try:
            with safe_open(self._path(number), "pt") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                said = (file.metadata() or {}).get(_HASH)
            shard = Shard(found[_IMAGE], found.get(_TEXT), found.get(_STARTS))
        except (OSError, SafetensorError, KeyError):
            return None
        fits = len(shard.image) == records and (shard.offsets is None or len(shard.offsets) == records + 1)
        return shard if fits and (not whole or said == _hash(found)) else None

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.safetensors"


def _hash(tensors: Mapping[str, Tensor]) -> str:
    """Returns the hash of a shard's numbers, which are contiguous."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().data)
    return digest.hexdigest()
