"""Images that stay in the files that they were imported from: a store then holds where each lies, and what it was.

A file that has another length than at the import is refused when the store is opened; an image whose bytes are others, when it
is read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpfed.errors import UserError
from dpfed.files.reading import open_regular

DIGEST_BYTES = 16
# Of each image: number of its file in the header, where it begins, its bytes, and their digest.
COLUMNS = {"file": pa.int32(), "offset": pa.int64(), "size": pa.int64(), "digest": pa.binary(DIGEST_BYTES)}


def digest_of(content: bytes) -> bytes:
    """The digest of an image file."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


class LinkedFiles:
    """The files that a store refers to.

    Args:
        store: its place, for messages.
        files: path and size of each.
    """

    def __init__(self, store: Path, files: Sequence[tuple[str, int]]) -> None:
        self._store, self._files = store, files

    @classmethod
    def of(cls, store: Path, header: dict[str, Any]) -> LinkedFiles | None:
        """Those of a header; ``None``: the store holds its images itself."""
        listed = header.get("linked")
        return None if listed is None else cls(store, [(file["path"], file["size"]) for file in listed])

    def check(self) -> None:
        """Whether all files are there, as long as they were.

        Raises:
            UserError: naming one that is not.
        """
        for path, size in self._files:
            try:
                found = os.stat(path).st_size
            except (OSError, ValueError):
                raise self._changed(path, "which is not there any more") from None
            if found != size:
                raise self._changed(path, f"which has {found:,} bytes instead of {size:,}")

    def read(self, file: int, offset: int, size: int, digest: bytes) -> bytes:
        """The bytes of an image, see `COLUMNS`.

        Raises:
            UserError: if they are not what they were.
        """
        path, length = self._files[file] if 0 <= file < len(self._files) else ("", 0)
        if not 0 <= offset <= offset + size <= length:
            raise self._changed(path or "a file", "in which no image can lie at such a place")
        try:
            with open_regular(Path(path)) as source:
                content = os.pread(source.fileno(), size, offset)
        except (OSError, ValueError):
            raise self._changed(path, "which cannot be read any more") from None
        if digest_of(content) != digest:
            raise self._changed(path, "in which an image has changed since it was imported")
        return content

    def _changed(self, path: str, how: str) -> UserError:
        what = f"the record store {self._store} is linked to {path}, {how}"
        return UserError(f"{what}: restore that file as it was, or import the data again.")
