"""Decides what an import may read: regular files below the source's folder; regular files elsewhere if the user allows it."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpfed.data.reasons import OUTSIDE
from dpfed.errors import UserError

_ELSEWHERE = re.compile(r"/(?:([A-Za-z]):[\\/]|[a-z][a-z0-9+]+:/)")
_MOST_BYTES = 1 << 30  # of one image file; a larger one would not be decoded anyway


class NotRead(Exception):
    """The error for a file that is not read; the message is the reason, in a few words."""


@dataclass(frozen=True)
class Access:
    """Knows which files an import may read, and keeps the listings of folders.

    Attributes:
        root: Real path of the source's folder; files below it may be read.
        outside: Whether files outside of this folder may be read as well.
        watch: Function that is called now and then with the number of files found so far, while a folder is listed.
        surveyed: Function that is called with (archives looked through so far, number of all archives).
        listings: Listing of each folder that was listed. Every importer is asked about a source, but a folder is listed only
            once.
    """

    root: str
    outside: bool = False
    watch: Callable[[int], None] | None = field(default=None, compare=False, repr=False)
    surveyed: Callable[[int, int | None], None] | None = field(default=None, compare=False, repr=False)
    listings: dict[Path, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def to(cls, source: Path, outside: bool = False, **options: Any) -> Access:
        """Returns the access to a folder, or to the folder in which a file lies.

        Args:
            source: A file or folder.
            outside: Whether files outside of this folder may be read as well.
            **options: Further attributes of the access.
        """
        return cls(os.path.realpath(source if source.is_dir() else source.parent), outside, **options)

    def permits(self, path: str | Path) -> bool:
        """Returns whether a path may be read: always if `outside` is set, otherwise if its real path lies below `root`."""
        if self.outside:
            return True
        folder, name = os.path.split(os.fspath(path))
        real = os.path.realpath(path) if name in ("", ".", "..") or os.path.islink(path) else os.path.join(_real(folder), name)
        return real == self.root or real.startswith(self.root.rstrip(os.sep) + os.sep)

    def read(self, path: Path) -> bytes:
        """Reads the bytes of an image file.

        Raises:
            NotRead: If the file is missing, is not a regular file, is larger than 1 GiB, lies outside of `root` although
                `outside` is not set, or cannot be read.
        """
        try:
            status = path.stat()
            if not self.permits(path):
                raise NotRead(OUTSIDE)
            if not stat.S_ISREG(status.st_mode):  # a pipe would wait for ever, a device may never end
                raise NotRead("a folder, not a file" if stat.S_ISDIR(status.st_mode) else "not a regular file")
            if status.st_size > _MOST_BYTES:
                raise NotRead("larger than 1 GiB")
            return path.read_bytes()
        except FileNotFoundError as error:
            raise NotRead(_why_missing(path)) from error
        except (OSError, ValueError) as error:  # ValueError: a path that cannot be one
            raise NotRead(getattr(error, "strerror", None) or str(error)) from error

    def file(self, path: Path) -> Path:
        """Returns the path of a table, an archive or another file of records, if the file may be read.

        A missing file passes: the code that opens it will raise the error.

        Raises:
            UserError: If the path leads out of `root` although `outside` is not set, or is not a regular file.
        """
        if not self.permits(path):
            raise UserError(f"{path} leads out of {self.root}; `dpfed data import --allow-outside` reads it. [import-outside]")
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a regular file: copy its content into a regular file. [import-file-kind]")
        return path


def _why_missing(path: Path) -> str:
    """Returns the reason why a file is missing, for example that there is a file whose name is spelt differently."""
    if "\\" in str(path) and Path(str(path).replace("\\", "/")).exists():
        return "file missing: write / instead of \\ in paths"
    if match := _ELSEWHERE.search(str(path)):
        return "file missing: its path is a Windows path" if match[1] else "file missing: addresses of the web are not fetched"
    if path.name in _spellings(path.parent):
        return "file missing"  # a link that leads nowhere
    name = unicodedata.normalize("NFC", path.name)
    alike = {unicodedata.normalize("NFC", other): other for other in _spellings(path.parent)}
    if name in alike:
        return "file missing: there is a file of this name in another Unicode form (NFC, NFD)"
    same = name.lower() in map(str.lower, alike)
    return "file missing: there is a file of this name with other capitals" if same else "file missing"


@lru_cache(maxsize=16)
def _spellings(folder: Path) -> frozenset[str]:
    """Returns the names of the entries of a folder; no names if the folder cannot be read."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    return os.path.realpath(folder)
