"""Files of one data set that are distinguished by split: in their own names or in their folders'."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from dpfed.data.importers.access import Access
from dpfed.data.importers.listing import Listing, list_files, suffix
from dpfed.data.importers.source import SPLIT_NAMES, Unreadable
from dpfed.data.reasons import OUTSIDE
from dpfed.data.store.record import SPLITS
from dpfed.errors import UserError

_WORD = re.compile("[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PART = re.compile(r"(?:(?:part|shard|chunk|batch|subset|group|folder|fold)[-_. ]?)?\d+", re.IGNORECASE)
_JOINED = re.compile(f"({'|'.join(SPLIT_NAMES)})(?:set|data|images?|imgs?|split|folder)")


@dataclass(frozen=True)
class SplitFiles:
    """The files of one data set.

    Attributes:
        files: (split, file) pairs in a fixed order, training files first.
        listing: what else lies in the folder; ``None`` for a single file.
    """

    files: list[tuple[str, Path]]
    listing: Listing | None

    def unread(self, also: Callable[[Path], bool] = lambda file: False) -> list[Unreadable]:
        """Files that would be lost.

        Args:
            also: whether another file is known to hold nothing of its own; it is passed over.
        """
        if self.listing is None:
            return []
        known = {file for _, file in self.files}
        for file in self.listing.files:
            if file not in known and also(file):
                known.add(file)
                self.listing.passed_over[f"{suffix(file)} files"] += 1
        return self.listing.others(known)

    @property
    def passed_over(self) -> dict[str, int]:
        """What holds no records by its name."""
        return dict(self.listing.passed_over) if self.listing else {}


def holds(path: Path, endings: Collection[str], access: Access | None) -> bool:
    """Whether there is a file of one of some kinds below a folder."""
    return any(suffix(file) in endings for file in list_files(path, access or Access.to(path)).files)


def split_files(path: Path, ending: str, layout: str, access: Access) -> SplitFiles:
    """The files of one data set and their splits.

    A file belongs to the split that its name or, failing that, the nearest folder's name speaks of, such as
    ``data/train-00000.parquet`` or ``cc3m-validation-0000.tar``; when none does, all files are for training.

    Args:
        path: a file, which is for training, or a folder.
        ending: such as ``".tar"``.
        layout: what was expected, for messages.
        access: what may be read.

    Raises:
        UserError: when there are no such files, a file belongs to no split or to several data sets, or may not be read.
    """
    if not path.is_dir():
        return SplitFiles([("train", access.file(path))], None)
    listing = list_files(path, access)
    found = sorted(file for file in listing.files if suffix(file) == ending)
    if not found:
        refuse_outside(listing)
        raise UserError(f"there are no {ending} files in {path}; expected {layout}. [import-no-files]")
    splits: dict[Path, str | None] = {access.file(file): split_of(file.relative_to(path)) for file in found}
    if not any(splits.values()):
        splits = dict.fromkeys(found, "train")
    named: list[tuple[str, Path]] = []
    for file, split in splits.items():
        if split is None:
            raise UserError(f"{file} has no split; start its name with train, validation or test, or move it. [split-unnamed]")
        named.append((split, file))
    configurations = {_configuration(file.relative_to(path)) for file in found}
    if len(configurations) > 1:
        raise UserError(f"{path} holds several data sets ({', '.join(sorted(configurations))}); give one folder. [import-sets]")
    ordered = sorted(named, key=lambda entry: (SPLITS.index(entry[0]), entry[1]))
    return SplitFiles(ordered, listing)


def refuse_outside(listing: Listing) -> None:
    """Refuses a folder of which nothing could be read, where its links lead elsewhere.

    Raises:
        UserError: when they do.
    """
    outside = [entry.id for entry in listing.refused if entry.reason == OUTSIDE]
    if outside:
        others = len(outside) - 1
        more = f" (and {others:,} other{'s' if others > 1 else ''})" if others else ""
        raise UserError(
            f"{listing.root / outside[0]}{more} leads out of {listing.root}; only `dpfed data "
            "import --allow-outside` reads there. [import-all-outside]"
        )


def split_of(file: Path) -> str | None:
    """The split that a file's name or its nearest folder speaks of; ``None``: neither does, or it speaks of several."""
    for part in reversed(file.parts):
        named = {SPLIT_NAMES[word] for word in words_of(part) if word in SPLIT_NAMES}
        if len(named) == 1:
            return named.pop()
    return None


def words_of(name: str) -> set[str]:
    """The words of a file's name, in small letters: ``TrainData-2`` and ``trainset`` hold ``train``."""
    words = {word.lower() for word in _WORD.findall(name)} | set(re.findall("[a-z]+", name.lower()))
    return words | {found[1] for word in words if (found := _JOINED.fullmatch(word))}


def is_part(folder: str) -> bool:
    """Whether a folder is one of several that a data set was cut into, by its name: ``part-0``, ``00012``."""
    return _PART.fullmatch(folder) is not None


def _configuration(file: Path) -> str:
    folders = (part for part in file.parts[:-1] if part != "data" and not is_part(part) and not split_of(Path(part)))
    return "/".join(folders) or "."
