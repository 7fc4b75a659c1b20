"""Keeps samples that identify a record set after a new import: names and contents of a few records, hashed with a secret.

Different record sets may share names, such as ``0.png`` or ``img_001.jpg``. So the contents of records with equal names are
compared, too.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from dpfed.data.record_set import RecordSet
from dpfed.data.store.index import blocks
from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically
from dpfed.files.hidden import visible_files
from dpfed.files.reading import read_bytes, read_text
from dpfed.privacy.randomness import KEY_BYTES, Randomness

_SAMPLE = 256  # number of sampled records of a set: those with the smallest hashed names
_FILES = ".names.json"

Contents = list[list[str]]  # for each record: hash of its image, and hash of all its captions ("" without captions)


class Samples:
    """The samples of record sets in a registry, for comparison with one store.

    Args:
        folder: Folder of the registry.
        store: Records to sample or to compare; they are read a million at a time.
    """

    def __init__(self, folder: Path, store: RecordSet) -> None:
        self._folder, self._store = folder, store

    def keep(self, id: str) -> None:
        """Stores a sample of the store's records for a budget, unless an intact sample exists or the records are public.

        Public records need no sample: their fingerprint stays the same in a repeated import. A sample would even mislead for
        generated records, because all sets of them have the same names.

        Args:
            id: Id of the budget.

        Raises:
            UserError: If the registry's secret is missing or damaged.
            OSError: If the registry cannot be written.
        """
        path = self._folder / f"{id}{_FILES}"
        if self._store.public or _is_whole(path):
            return
        secret = self._secret()
        smallest, rows = np.zeros(0), np.zeros(0, np.int64)
        for block, hashed in self._hashed(secret):
            smallest, rows = np.append(smallest, hashed), np.append(rows, block)
            order = np.argsort(smallest, kind="stable")[:_SAMPLE]
            smallest, rows = smallest[order], rows[order]
        content = {"names": smallest.tolist(), "contents": self._contents(secret, rows)}
        write_atomically(path, json.dumps(content) + "\n", mode=0o600)

    def fractions(self, ids: Collection[str]) -> dict[str, tuple[float, float | None]]:
        """Measures which fraction of each budget's sampled records is in the store.

        Args:
            ids: Ids of the budgets.

        Returns:
            Two fractions for each budget, if the store has at least one of its sampled names. The first is the fraction of the
            sampled names that the store has. The second is, of the records with these names, the fraction with the same image
            or the same captions as in the sample. ``None``: the sample is of an older dpfed, which kept no contents.

        Raises:
            UserError: If a sample or the registry's secret is damaged.
        """
        if not visible_files(self._folder, _FILES):
            return {}
        secret = self._secret()
        paths = {id: self._folder / f"{id}{_FILES}" for id in ids}
        samples = {id: _read(path) for id, path in paths.items() if path.exists()}
        if not samples:
            return {}
        wanted = np.unique(np.concatenate([names for names, _ in samples.values()]))
        place = np.full(len(wanted) + 1, -1, np.int64)  # the row of each name in the store
        for block, hashed in self._hashed(secret):
            at = np.searchsorted(wanted, hashed)
            here = np.append(wanted, np.inf)[at] == hashed
            place[at[here]] = block[here]
        fractions = {}
        for id, (names, contents) in samples.items():
            rows = place[np.searchsorted(wanted, names)]
            here = np.flatnonzero(rows >= 0)
            if len(here):
                fractions[id] = len(here) / len(names), self._equal(secret, rows[here], contents, here)
        return fractions

    def _equal(self, secret: Randomness, rows: np.ndarray, contents: Contents | None, places: np.ndarray) -> float | None:
        if contents is None:
            return None
        pairs = zip(self._contents(secret, rows), (contents[place] for place in places.tolist()), strict=True)
        return float(np.mean([any(present and present == kept for present, kept in zip(*pair, strict=True)) for pair in pairs]))

    def _contents(self, secret: Randomness, rows: np.ndarray) -> Contents:
        key = secret.key("budget contents")

        def hashed(content: bytes) -> str:
            return hashlib.blake2b(content, key=key, digest_size=8).hexdigest()

        images, captions = self._store.encoded(rows), self._store.captions(rows)
        return [
            [hashed(image), hashed(repr(sorted(texts)).encode()) if texts else ""]
            for image, texts in zip(images, captions, strict=True)
        ]

    def _hashed(self, secret: Randomness) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the rows of training records, ``(n,)`` int64, and their hashed names, ``(n,)`` float64, block by block."""
        training = self._store.within("train")
        for first, end in blocks(len(self._store)):
            rows = first + np.flatnonzero(training(first, end))
            yield rows, secret.per_record("budget", 0, self._store.budget_names[rows], 1)[:, 0]

    def _secret(self) -> Randomness:
        """Returns the registry's secret for the hashes; it is created with the first sample, under the registry's lock."""
        path = self._folder / "secret.key"
        if not path.exists() and not visible_files(self._folder, _FILES):
            write_atomically(path, secrets.token_bytes(KEY_BYTES), mode=0o600)
        try:
            key = read_bytes(path)
        except FileNotFoundError:
            key = b""
        if len(key) != KEY_BYTES:
            raise UserError(
                f"{path} is missing or damaged: restore it, or remove it with all `*{_FILES}` beside it. [registry-key-damaged]"
            )
        return Randomness(key)


def _is_whole(path: Path) -> bool:
    """Returns whether a file holds an undamaged sample with hashes of contents; otherwise the caller writes it again."""
    try:
        return path.exists() and _read(path)[1] is not None
    except UserError:
        return False


def _read(path: Path) -> tuple[np.ndarray, Contents | None]:
    """Reads a sample: hashed names, ``(n,)`` float64 in [0, 1), and hashes of contents; ``None``: an older dpfed wrote none."""
    try:
        sample = json.loads(read_text(path))
        contents = sample["contents"] if isinstance(sample, dict) else None
        names = np.array(sample["names"] if isinstance(sample, dict) else sample, np.float64)
        if names.ndim != 1 or not ((names >= 0) & (names < 1)).all():  # NaN matches no record, and would hide a name
            raise ValueError("expected a list of numbers from 0 to 1")
        hashes = [len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in contents or ()]
        if contents is not None and not (len(hashes) == len(names) and all(hashes)):
            raise ValueError("expected two hashes for each name")
        return names, contents
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise UserError(
            f"{path} is damaged ({error}): remove it; the next run on the store writes it anew. [registry-sample]"
        ) from error
