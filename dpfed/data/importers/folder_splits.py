"""Decides which folders above images are splits, which are classes, and which are neither."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpfed.data.importers.folder_refusals import SAYS_NOTHING, beside, commands, refuse_names, split_in
from dpfed.data.importers.persons import Persons, names_a_person, persons_of
from dpfed.data.importers.splits import is_part, merged, words_of
from dpfed.data.limits import whole_number
from dpfed.errors import UserError

_PART = "part"
_NAMED = 3
_DEEPEST = 32  # folders below a source


@dataclass(frozen=True)
class Placed:
    """An image file, with the split and the class that follow from the names of the folders above it.

    Attributes:
        file: Path of the image.
        split: Split of the image.
        label: Class of the image, which is the name of a folder; ``None``: the image has no class.
        said: Name of the folder that gives the split; ``None``: no folder gives it, and the image is for training.
    """

    file: Path
    split: str
    label: str | None
    said: str | None = None


def place(root: Path, files: Sequence[Path], others: Sequence[Path] = (), level: int | None = None) -> list[Placed]:
    """Finds the split and the class of each image from the folders above it.

    The levels of folders are looked at from the root downwards. A level is skipped if a single folder on it holds all images,
    unless the name of this folder contains a split, or the folder holds images itself and is not called ``images`` or the like.
    Numbered parts such as ``part-0`` and ``part-1`` count as a single folder. The first level that is not skipped decides: if
    the names of all its folders contain splits, these folders are splits, and the folders below them are classes. The class may
    also lie above the split, as in ``cats/train/x.jpg``. If no folder's name contains a split, the folders of the first level
    that is not skipped are classes, and all images are for training.

    Args:
        root: Folder that is imported.
        files: Images below the root.
        others: All files below the root. They tell whether there is a training split without images.
        level: Level of the split folders: 1 for folders directly in the root, 2 for the folders in these, and so on; 0: no
            folder is a split; ``None``: the names decide.

    Returns:
        An entry for each image, in the order of `files`.

    Raises:
        UserError: If `level` is not a whole number from 0 to 32, or a folder of this level is not a split. If `level` is
            ``None``, and one of these holds: it is not clear whether folders are splits or classes; an image lies beside the
            split folders; or splits stand in the names of all image files, but of no folder (`folder_refusals.refuse_names`).
            If folders are splits, but none is for training.
    """
    folders = [file.relative_to(root).parts[:-1] for file in files]
    if level is not None and whole_number(level, "--splits", 0, _DEEPEST):
        placed = _at_level(root, files, folders, level)
        _require_training(root, placed, others, level - 1)
        return placed
    outer = _shared(folders, stop_at_splits=level is None)
    inner = [parts[outer:] for parts in folders]
    spoken = [[split_in(part) for part in parts] for parts in inner] if level is None else [[] for _ in inner]
    if not any(map(any, spoken)):
        if level is None:
            refuse_names(root, files)
        return [Placed(file, "train", _first(parts)) for file, parts in zip(files, inner, strict=True)]
    if not all(map(any, spoken)):
        aside = next(file for file, splits in zip(files, spoken, strict=True) if not any(splits))
        raise beside(root, aside, [parts for parts in folders if any(map(split_in, parts))])
    if all(splits[0] for splits in spoken):
        first = [str(splits[0]) for splits in spoken]
        if "train" not in first and not any(_trains(root, file, outer) for file in others):
            named = sorted({parts[0] for parts in inner})
            top = root.joinpath(*folders[0][:outer])
            alone = shlex.quote(str(top / named[0]))
            either = "" if any(len(parts) > 1 for parts in inner) else f" {commands(root, 0)}"
            raise UserError(
                f"{root} has no images for training, only images in {', '.join(named)}: add {top / 'train'}, or import one of "
                f"these folders alone with `dpfed data import {alone} DEST`.{either} [folder-no-training]"
            )
        return _below_splits(files, inner, first)
    if all(len(splits) == 2 and splits[1] and not splits[0] for splits in spoken):
        placed = [
            Placed(file, str(splits[1]), parts[0], parts[1]) for file, parts, splits in zip(files, inner, spoken, strict=True)
        ]
        _require_training(root, placed, others, outer + 1)
        return placed
    deepest = min(map(len, folders))
    levels = [level for level in range(1, deepest + 1) if all(split_in(parts[level - 1]) for parts in folders)]
    unclear = next(file for file, splits in zip(files, spoken, strict=True) if not splits[0])
    raise UserError(
        f"in {unclear.relative_to(root).parent}, it is not clear which folder is the split and which is the class. "
        f"{commands(root, 0, *levels)} Or import one folder alone. [folder-split-unclear]"
    )


def class_numbers(placed: Sequence[Placed]) -> tuple[dict[str, list[str]], Callable[[Placed], dict[str, int]]]:
    """Numbers the classes of images.

    Folder names that differ only in their Unicode form (NFC, NFD) are one class: systems write them in different forms.

    Args:
        placed: Images with their classes.

    Returns:
        The names of the classes for each label name, and a function that returns the labels of an image: the class number for
        each label name. The only label name is ``label``; there is none if no image has a class.

    Raises:
        UserError: If two splits write a class in different capitals: one class would become two, and nobody would notice.
    """
    classes = {image.label: unicodedata.normalize("NFC", image.label) for image in placed if image.label is not None}
    names = sorted(set(classes.values()))
    splits: dict[str, set[str]] = {}
    for image in placed:
        if image.label is not None:
            splits.setdefault(classes[image.label], set()).add(image.split)
    alike: dict[str, str] = {}
    for name in names:
        other = alike.setdefault(name.lower(), name)
        if other != name and not splits[other] & splits[name]:
            raise UserError(f"classes {other!r} and {name!r} of two splits differ in capitals; use one name. [folder-capitals]")
    numbers = {name: number for number, name in enumerate(names)}

    def labels(image: Placed) -> dict[str, int]:
        return {} if image.label is None else {"label": numbers[classes[image.label]]}

    return {"label": names} if names else {}, labels


def with_persons(root: Path, placed: Sequence[Placed]) -> tuple[list[Placed], Persons]:
    """Finds the persons to whom images belong (`dpfed.data.importers.persons`).

    Args:
        root: Folder that is imported.
        placed: Images with their classes.

    Returns:
        The images and the persons, both in the order of `placed`. If the persons are units, an image whose class was the name
        of a person has no class any more.
    """
    persons = persons_of([image.file.relative_to(root) for image in placed])
    return without_persons(placed) if persons.unit_name else [*placed], persons


def without_persons(placed: Sequence[Placed]) -> list[Placed]:
    """Returns the images; an image whose class is the name of a person becomes an image without a class."""
    return [replace(image, label=None) if names_a_person(image.label or "") else image for image in placed]


def merged_splits(placed: Sequence[Placed]) -> str:
    """Returns a sentence about folders that count as splits, perhaps wrongly; empty if there are none; see `splits.merged`."""
    return merged({(image.split, image.said) for image in placed if image.said is not None}, "folders")


def without_shards(placed: list[Placed], passed_over: Collection[str]) -> tuple[list[Placed], str]:
    """Removes the labels of images if the labels are only numbers of shards, as in img2dataset's ``files`` format.

    A shard is a numbered part of a data set. The folders are shards if the names of the images begin with the folder's number,
    as in ``00000/000000001.jpg``, or there are files such as ``00000_stats.json``.

    Args:
        placed: Images with their classes.
        passed_over: Names of files below the source that hold no records.

    Returns:
        The images, and a sentence that names the shards; the sentence is empty if the labels are kept.
    """
    numbers = {image.label for image in placed}
    if not all(label is not None and label.isdecimal() and len(label) > 1 for label in numbers):
        return placed, ""
    begins = all(image.file.stem.isdecimal() and image.file.stem[:-1].startswith(str(image.label)) for image in placed)
    if not begins and not all(f"{label}_stats.json" in passed_over for label in numbers):
        return placed, ""
    named = ", ".join(sorted(map(str, numbers))[:_NAMED]) + ", ..." * (len(numbers) > _NAMED)
    said = f"Folders that are numbered shards do not count as classes: {named}."
    return [replace(image, label=None) for image in placed], said


def _at_level(root: Path, files: Sequence[Path], folders: Sequence[tuple[str, ...]], level: int) -> list[Placed]:
    for file, parts in zip(files, folders, strict=True):
        if len(parts) < level or split_in(parts[level - 1]) is None:
            raise UserError(
                f"{file}: the folder of level {level} below {root} is missing, or its name does not contain exactly one "
                "split; correct --splits. [folder-no-split]"
            )
    rest = [parts[: level - 1] + parts[level:] for parts in folders]
    outer = _shared(rest)
    said = [parts[level - 1] for parts in folders]
    return [
        Placed(file, str(split_in(name)), _first(parts[outer:]), name)
        for file, parts, name in zip(files, rest, said, strict=True)
    ]


def _below_splits(files: Sequence[Path], inner: Sequence[tuple[str, ...]], splits: Sequence[str]) -> list[Placed]:
    """Finds the classes of images in split folders.

    Between a split folder such as ``train/`` and the class folders, there may be another ``train/`` or ``images/``.

    Args:
        files: Images.
        inner: Folders above each image, from its split folder on.
        splits: Split of each image.
    """
    below: dict[str, set[str | None]] = {}
    for parts in inner:
        below.setdefault(parts[0], set()).add(_first(parts[1:]))
    again = {top: len(names) == 1 and split_in(next(iter(names)) or "") == split_in(top) for top, names in below.items()}
    rest = [parts[1 + again[parts[0]] :] for parts in inner]
    outer = _shared(rest)
    said = [parts[0] for parts in inner]
    return [
        Placed(file, split, _first(parts[outer:]), name)
        for file, parts, split, name in zip(files, rest, splits, said, strict=True)
    ]


def _shared(folders: Sequence[tuple[str, ...]], stop_at_splits: bool = False) -> int:
    """Returns the number of levels of folders above the classes. On each of these levels, one folder holds all images.

    Args:
        folders: Names of the folders above each image.
        stop_at_splits: Whether a folder whose name contains a split ends the count.
    """
    depth = 0
    while True:
        names = {_kind(parts[depth]) if len(parts) > depth else None for parts in folders}
        name = names.pop()
        if names or name is None or (stop_at_splits and split_in(name)):
            return depth
        if any(len(parts) == depth + 1 for parts in folders):  # the folder holds images: a class, unless its name says nothing
            return depth + (name != _PART and words_of(name) <= SAYS_NOTHING)
        depth += 1


def _kind(folder: str) -> str:
    """Returns a folder's name or, for a numbered part such as ``fold1``, one name that all numbered parts share.

    A folder whose name is only a number may be a class, so its own name is returned.
    """
    return _PART if is_part(folder) and not folder.isdecimal() else folder


def _first(parts: tuple[str, ...]) -> str | None:
    return parts[0] if parts else None


def _trains(root: Path, file: Path, depth: int) -> bool:
    folders = file.relative_to(root).parts[:-1]
    return len(folders) > depth and split_in(folders[depth]) == "train"


def _require_training(root: Path, placed: Sequence[Placed], others: Sequence[Path], depth: int) -> None:
    """Refuses images of which none is for training, unless a training folder holds other files.

    Args:
        root: Folder that is imported.
        placed: Images with their splits.
        others: All files below the root.
        depth: Number of folders between the root and the folders that are splits.

    Raises:
        UserError: If there is no training folder.
    """
    if any(image.split == "train" for image in placed) or any(_trains(root, file, depth) for file in others):
        return
    paths = [image.file.relative_to(root).parts[: depth + 1] for image in placed]
    named = sorted({"/".join(path) for path in paths})
    raise UserError(
        f"{root} has no images for training, only images in {', '.join(named[:_NAMED])}{', ...' * (len(named) > _NAMED)}: add "
        f"{root.joinpath(*paths[0][:-1], 'train')}, or let all images be for training. {commands(root, 0)} "
        "[folder-all-held-out]"
    )
