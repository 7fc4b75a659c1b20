"""What an import may read: regular files of the source's own folder, and nothing outside unless the user says so."""

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
    """A file that is not read; the message is the reason, in a few words."""


@dataclass(frozen=True)
class Access:
    """Files that an import may read, and folders that it has listed.

    Attributes:
        root: The source's folder, without links; files below it may be read.
        outside: Files elsewhere may be read, too.
        watch: Called now and then, with how many files were found, while a folder is listed.
        surveyed: Called with how many archives were looked through, and of how many.
        listings: The folders that were listed: every importer is asked about a source, and a large one is walked once.
    """

    root: str
    outside: bool = False
    watch: Callable[[int], None] | None = field(default=None, compare=False, repr=False)
    surveyed: Callable[[int, int | None], None] | None = field(default=None, compare=False, repr=False)
    listings: dict[Path, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def to(cls, source: Path, outside: bool = False, **options: Any) -> Access:
        """Access to a folder, or to the folder that a file lies in."""
        return cls(os.path.realpath(source if source.is_dir() else source.parent), outside, **options)

    def permits(self, path: str | Path) -> bool:
        """Returns whether a file or folder lies below the root, wherever links lead."""
        if self.outside:
            return True
        folder, name = os.path.split(os.fspath(path))
        real = os.path.realpath(path) if name in ("", ".", "..") or os.path.islink(path) else os.path.join(_real(folder), name)
        return real == self.root or real.startswith(self.root.rstrip(os.sep) + os.sep)

    def read(self, path: Path) -> bytes:
        """The bytes of an image file.

        Raises:
            NotRead: When the file is missing, no regular file, too large, or lies where nothing may be read.
        """
        try:
            found = path.stat()
            if not self.permits(path):
                raise NotRead(OUTSIDE)
            if not stat.S_ISREG(found.st_mode):  # a pipe would wait for ever, a device may never end
                raise NotRead("a folder" if stat.S_ISDIR(found.st_mode) else "no regular file")
            if found.st_size > _MOST_BYTES:
                raise NotRead("larger than 1 GiB")
            return path.read_bytes()
        except FileNotFoundError as error:
            raise NotRead(_why_missing(path)) from error
        except (OSError, ValueError) as error:  # ValueError: a path that cannot be one
            raise NotRead(getattr(error, "strerror", None) or str(error)) from error

    def file(self, path: Path) -> Path:
        """A table, an archive or another file of the data set itself.

        Raises:
            UserError: When it is missing, no regular file, or lies where nothing may be read.
        """
        if not self.permits(path):
            raise UserError(f"{path} leads out of {self.root}; `dpfed data import --allow-outside` reads it. [import-outside]")
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a regular file; copy what it gives into a file. [import-file-kind]")
        return path


def _why_missing(path: Path) -> str:
    """Explains why a file is missing: a file with another spelling of the name may exist."""
    if "\\" in str(path) and Path(str(path).replace("\\", "/")).exists():
        return "file missing: write / instead of \\ in paths"
    if found := _ELSEWHERE.search(str(path)):
        return "file missing: its path is of Windows" if found[1] else "file missing: addresses of the web are not fetched"
    if path.name in _spellings(path.parent):
        return "file missing"  # a link that leads nowhere
    name = unicodedata.normalize("NFC", path.name)
    alike = {unicodedata.normalize("NFC", found): found for found in _spellings(path.parent)}
    if name in alike:
        return "file missing: its name is there in another Unicode form (NFC, NFD)"
    return "file missing: its name is there in other capitals" if name.lower() in map(str.lower, alike) else "file missing"


@lru_cache(maxsize=16)
def _spellings(folder: Path) -> frozenset[str]:
    """The names in a folder; none if it cannot be read."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    return os.path.realpath(folder)
