"""Finds the files of one data set, and their splits, which follow from the names of files and folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from dpfed.data.importers.access import Access
from dpfed.data.importers.listing import Listing, list_files, suffix
from dpfed.data.importers.source import SPLIT_NAMES, Unreadable, plain
from dpfed.data.reasons import OUTSIDE
from dpfed.data.store.record import SPLITS
from dpfed.errors import UserError

_WORD = re.compile("[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PART = re.compile(r"(?:(?:part|shard|chunk|batch|subset|group|folder|fold)[-_. ]?)?\d+", re.IGNORECASE)
_HASH = re.compile(r"[-_.](?=[a-f]*\d)[0-9a-f]{8,}(-[0-9a-f]{4,})*")  # in names of Parquet files
_SAY_SPLIT = frozenset({*SPLIT_NAMES, "set", "data", "dataset", "image", "images", "img", "imgs", "split", "folder", "of"})
_MOST_NAMED = 6
_HIVE_EMPTY = "__HIVE_DEFAULT_PARTITION__"
_JOINED = re.compile(f"({'|'.join(SPLIT_NAMES)})(?:set|data|images?|imgs?|split|folder)")


@dataclass(frozen=True)
class SplitFiles:
    """The files of one data set.

    Attributes:
        files: (split, path) of each file in a fixed order, training files first.
        listing: Contents of the folder; ``None``: the source is a single file.
        notice: Sentence that says which names count as splits, if that is not obvious; otherwise empty (see `merged`).
    """

    files: list[tuple[str, Path]]
    listing: Listing | None
    notice: str = ""

    def unread(self, also: Callable[[Path], bool] = lambda file: False) -> list[Unreadable]:
        """Returns the files in the folder that would be lost, because they are neither among `files` nor passed over.

        Args:
            also: Function that says whether a file that is not among `files` can be passed over without loss.
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
        """The names, or kinds, of files and folders that hold no records, with their counts."""
        return dict(self.listing.passed_over) if self.listing else {}


def holds(path: Path, endings: Collection[str], access: Access | None) -> bool:
    """Returns whether a file with one of the given endings, such as ``".tar"``, lies below a folder.

    Raises:
        UserError: If the folder cannot be read.
    """
    return any(suffix(file) in endings for file in list_files(path, access or Access.to(path)).files)


def split_files(path: Path, ending: str, layout: str, access: Access) -> SplitFiles:
    """Finds the files of one data set and their splits.

    A file belongs to the split that its name contains, as in ``data/train-00000.parquet`` or ``cc3m-validation-0000.tar``. If
    its name contains none, the name of the nearest folder above it that contains a split decides. If no name contains a split,
    all files are for training.

    Args:
        path: Folder of the files, or a single file, which is for training.
        ending: Ending of the files, such as ``".tar"``.
        layout: Expected layout, for messages.
        access: Paths that the import may read.

    Raises:
        UserError: If the folder cannot be read or has no such files, only some of the files have a split, the files belong to
            several data sets, or a file may not be read.
    """
    if not path.is_dir():
        return SplitFiles([("train", access.file(path))], None)
    listing = list_files(path, access)
    files = sorted(file for file in listing.files if suffix(file) == ending)
    if not files:
        refuse_outside(listing)
        raise UserError(f"there are no {ending} files in {path}; expected {layout}. [import-no-files]")
    splits: dict[Path, str | None] = {access.file(file): split_of(file.relative_to(path)) for file in files}
    if not any(splits.values()):
        splits = dict.fromkeys(files, "train")
    named: list[tuple[str, Path]] = []
    for file, split in splits.items():
        if split is None:
            raise UserError(
                f"{file} has no split, but other files have one: start its name with train, validation or test, or move it out "
                "of the folder that is imported. [split-unnamed]"
            )
        named.append((split, file))
    configurations = {_configuration(inner): inner for inner in (file.relative_to(path) for file in reversed(files))}
    if len(configurations) > 1:
        shown = (folder or first.as_posix() for folder, first in sorted(configurations.items()))
        raise UserError(
            f"{path} holds several data sets ({', '.join(shown)}): import the folder of one of them, or move the others out of "
            f"{path}. [import-sets]"
        )
    ordered = sorted(named, key=lambda entry: (SPLITS.index(entry[0]), entry[1]))
    spoken = filter(None, (spoken_part(file.relative_to(path)) for _, file in ordered))
    return SplitFiles(ordered, listing, merged(spoken, "files"))


def refuse_outside(listing: Listing) -> None:
    """Refuses a folder that holds none of the files that are looked for, if links lead out of the folder.

    Raises:
        UserError: If a link leads out of the folder; the message names the option with which an import follows such links.
    """
    outside = [entry.id for entry in listing.refused if entry.reason == OUTSIDE]
    if outside:
        raise UserError(
            f"links lead out of {listing.root} ({len(outside):,}): {listing.root / outside[0]}{', ...' * (len(outside) > 1)}; "
            "`dpfed data import --allow-outside` follows them. [import-all-outside]"
        )


def split_of(file: Path) -> str | None:
    """Returns the split that the name of a file, or else of the nearest folder above it, contains.

    Names that contain no split, or several, are ignored. ``None``: no name contains exactly one split.

    Args:
        file: Path of the file; the names of all folders in this path count.
    """
    spoken = spoken_part(file)
    return spoken[0] if spoken else None


def spoken_part(file: Path) -> tuple[str, str] | None:
    """Returns the split that `split_of` returns, with the part of the path that contains the split; ``None``: no split."""
    for part in reversed(file.parts):
        key, _, value = part.rpartition("=")
        if key and plain(key) != "split":
            continue  # label=train, as Spark and Hive call a folder, is a class
        named = {SPLIT_NAMES[word] for word in words_of(value) if word in SPLIT_NAMES}
        if len(named) == 1:
            return named.pop(), part
    return None


def merged(names: Iterable[tuple[str, str]], kind: str) -> str:
    """Returns a sentence about names that count as splits, although they may not mean splits.

    There are two cases: several names mean the same split, such as ``testA`` and ``testB``; or a name has further words, such
    as ``train_extra`` beside ``val``.

    Args:
        names: (split, name) of each folder or file whose name contains a split.
        kind: What has the names, ``"folders"`` or ``"files"``. Names of files that differ only in numbers count as one name.

    Returns:
        The sentence; empty if there are no such names.
    """
    alike: dict[str, dict[object, str]] = {}
    further: dict[str, set[str]] = {}
    for split, name in names:
        words = _WORD.findall(_HASH.sub("", name.partition(".")[0] if kind == "files" else name))
        alike.setdefault(split, {}).setdefault(tuple(words) if kind == "files" else name, name)
        further[name] = {word for word in map(str.lower, words) if not (word in _SAY_SPLIT or _JOINED.fullmatch(word))}
    shared = set.intersection(*further.values()) if further else set()
    odd = {
        split: list(distinct.values())
        for split, distinct in alike.items()
        if len(distinct) > 1 or any(further[name] - shared for name in distinct.values())
    }
    if not odd:
        return ""
    said = "; ".join(f"{', '.join(sorted(called)[:_MOST_NAMED])} as {split}" for split, called in sorted(odd.items()))
    return f"By their names, these {kind} count as splits: {said}. Move away those that do not belong to these splits."


def words_of(name: str) -> set[str]:
    """Returns the words in a name, in small letters. ``train`` is among the words of ``TrainData-2`` and of ``trainset``."""
    words = {word.lower() for word in _WORD.findall(name)} | set(re.findall("[a-z]+", name.lower()))
    return words | {match[1] for word in words if (match := _JOINED.fullmatch(word))}


def is_part(folder: str) -> bool:
    """Returns whether a folder's name says that it is a numbered part of a data set, such as ``part-0`` or ``00012``."""
    return _PART.fullmatch(folder) is not None


def cells_of_folders(file: Path) -> dict[str, str | None]:
    """Returns the cells that the folders above a file give to all rows of the file.

    Spark and Hive name such folders: ``label=cat`` gives the cell ``cat`` of the column ``label``.

    Args:
        file: Path of the file, relative to the source.
    """
    pairs = (part.partition("=") for part in file.parts[:-1])
    return {key: None if value == _HIVE_EMPTY else unquote(value) for key, equals, value in pairs if key and equals}


def _configuration(file: Path) -> str:
    parts = (part for part in file.parts[:-1] if part != "data" and "=" not in part)
    folders = (part for part in parts if not is_part(part) and not split_of(Path(part)))
    return "/".join(folders)
