"""Lists the files below a folder. No file is lost unnoticed: each is listed, passed over because of its name, or refused."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dpfed.data.decoding import EXTENSIONS
from dpfed.data.importers.access import Access
from dpfed.data.importers.side_files import ARCHIVES, side_file, side_folder
from dpfed.data.importers.source import Unreadable
from dpfed.data.reasons import OUTSIDE
from dpfed.errors import UserError

_WATCHED = 1000  # files between two calls of a progress


@dataclass
class Listing:
    """The contents of a folder and of all folders below it.

    Attributes:
        root: Path of the folder.
        files: All files except those that are passed over or refused, folder by folder, in the order of their names.
        passed_over: Files and folders that hold no records: their names, or kinds such as ``"hidden files and folders"``, with
            their counts.
        refused: Folders that cannot be read or were read already, and links that are not followed, with the reasons.
    """

    root: Path
    files: list[Path] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)
    refused: list[Unreadable] = field(default_factory=list)

    def images(self) -> list[Path]:
        """Returns the files that are images by their names."""
        return [file for file in self.files if suffix(file) in EXTENSIONS]

    def others(self, read: Collection[Path]) -> list[Unreadable]:
        """Returns what an import would lose: all files that it does not read, and what was refused.

        Args:
            read: Files that the import reads.
        """
        read = set(read)
        return [*self.refused, *(self.unread(file) for file in self.files if file not in read)]

    def unread(self, file: Path) -> Unreadable:
        """Returns the path of a file that an import does not read, with the reason."""
        kind = suffix(file)
        reason = f"{kind} files are not read" if kind else "files without a suffix are not read"
        if kind in EXTENSIONS:
            reason = f"{kind} images are not read by this importer"
        return Unreadable(file.relative_to(self.root).as_posix(), reason)


def suffix(file: Path) -> str:
    """Returns the last suffix of a file's name, in small letters and with its dot; empty if there is no suffix.

    The suffix of every tar archive counts as ``.tar``, even if the archive is compressed.
    """
    return ".tar" if archive_ending(file) else os.path.splitext(file.name)[1].lower()


def archive_ending(file: Path) -> str:
    """Returns the ending of a tar archive's name, such as ``.tar.gz``; empty for other files."""
    name = file.name.lower()
    return next((ending for ending in ARCHIVES if name.endswith(ending)), "")


def list_files(root: Path, access: Access) -> Listing:
    """Lists all files below a folder.

    Args:
        root: Path of the folder.
        access: Paths that the import may read. It keeps the listing for later calls.

    Returns:
        A copy of the listing, which the caller may change.

    Raises:
        UserError: If the folder itself cannot be read.
    """
    if root not in access.listings:
        listing = Listing(root)
        for file in walk(root, access, listing):
            listing.files.append(file)
            if access.watch is not None and len(listing.files) % _WATCHED == 0:
                access.watch(len(listing.files))
        if any(entry.id == "." for entry in listing.refused):
            raise UserError(f"{root}: {listing.refused[0].reason}; make the folder readable for this user. [folder-unreadable]")
        access.listings[root] = listing
    kept = access.listings[root]
    return Listing(root, list(kept.files), Counter(kept.passed_over), list(kept.refused))


def walk(root: Path, access: Access, listing: Listing | None = None) -> Iterator[Path]:
    """Yields the files below a folder.

    A folder's own files come before those in its subfolders. No folder is entered twice.

    Args:
        root: Path of the folder.
        access: Paths that the import may read. Links that lead to other paths are not followed.
        listing: Listing to which names that are passed over or refused are added; ``None``: these names are not kept.
    """
    notes = listing or Listing(root)
    waiting, seen = [root], set()
    while waiting:
        folder = waiting.pop()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                notes.refused.append(_refused(root, folder, "link to a folder that is read already"))
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            notes.refused.append(_refused(root, folder, f"folder cannot be read: {error.strerror or error}"))
            continue
        below, names = [], {entry.name for entry in entries}
        for entry in entries:
            path = Path(folder, entry.name)
            is_folder = _is_folder(entry)
            counts_as = side_folder(entry.name) if is_folder else side_file(entry.name, names.__contains__)
            if counts_as is not None:
                notes.passed_over[counts_as] += 1
            elif entry.is_symlink() and not access.permits(path) and os.path.exists(path):
                notes.refused.append(_refused(root, path, OUTSIDE))
            elif is_folder:
                below.append(path)
            else:
                yield path
        waiting.extend(reversed(below))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; reading it will fail, and say so
        return False


def _refused(root: Path, path: Path, reason: str) -> Unreadable:
    return Unreadable(path.relative_to(root).as_posix(), reason)
