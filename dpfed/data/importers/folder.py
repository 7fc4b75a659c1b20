"""Imports folders of image files, with or without class folders."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpfed.data.decoding import EXTENSIONS
from dpfed.data.importers.access import Access
from dpfed.data.importers.captioned_folder import mostly_captioned
from dpfed.data.importers.conversions import packed_splits
from dpfed.data.importers.folder_refusals import refuse_masks
from dpfed.data.importers.folder_splits import class_numbers, merged_splits, place, with_persons, without_shards
from dpfed.data.importers.listing import Listing, list_files, suffix
from dpfed.data.importers.side_files import side_folder
from dpfed.data.importers.source import FileRecord, Importer, Item, Source, spaced
from dpfed.data.importers.splits import holds, refuse_outside, split_of
from dpfed.data.importers.table_rows import TABLES, holds_entries, is_text_table, names_files
from dpfed.errors import UserError

_CAPTIONS = TABLES | {".json", ".txt", ".token", ".xml", ".xlsx", ".xls"}  # files that may say what the images show
_SETS = frozenset({".tar", ".parquet"})  # files that may be a data set themselves
_TABLES_SHOWN, _TEXTS_TRIED = 4, 16


class FolderImporter(Importer):
    """Imports images such as ``root/class/x.jpg``, or ``root/train/class/x.jpg`` and ``root/val/class/x.jpg`` (as in ImageNet).

    `dpfed.data.importers.folder_splits` says which folders are splits.

    The id of a record is the path of its image below the root. Images that lie outside a class folder have no label. Folders of
    persons, such as ``patient_001``, are units, not classes (`dpfed.data.importers.persons`). Files whose names show that they
    hold no records are passed over. All other files would be lost: the import is refused, unless the user allows it to leave
    them out.
    """

    name = "folder"
    options = ("splits",)
    layout = "a folder of images, of class folders, or of train/ val/ test/ folders with class folders"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether `path` is a folder with an image somewhere below it."""
        return path.is_dir() and holds(path, EXTENSIONS, access)

    def open(self, path: Path, access: Access | None = None, splits: int | None = None) -> Source:
        """Lists the names of the images. The images are read when the source's iterator is used.

        Args:
            path: Folder of the images.
            access: Paths that the import may read.
            splits: Level of the split folders, 1 for those directly in `path`; see `dpfed.data.importers.folder_splits.place`.

        Raises:
            UserError: If `path` is not a folder or cannot be read, no images lie below it, masks lie below it as well and
                `splits` is ``None``, the folders do not fit `splits`, no image is for training, or the splits or classes of the
                images are not clear.
        """
        if not path.is_dir():
            raise UserError(f"{path} is not a folder; the 'folder' importer expects {self.layout}. [folder-not-one]")
        listing = list_files(path, access or Access.to(path))
        images = listing.images()
        if not images:
            refuse_outside(listing)
            raise UserError(f"there are no images in {path}; the 'folder' importer expects {self.layout}. [folder-no-images]")
        placed, shards = without_shards(place(path, images, listing.files, splits), listing.passed_over)
        placed, persons = with_persons(path, placed)
        names, labels = class_numbers(placed)
        if splits is None:
            refuse_masks(path, images)

        def records() -> Iterator[Item]:
            for image, unit in zip(placed, persons.units, strict=True):
                yield FileRecord(image.file.relative_to(path).as_posix(), image.file, (), labels(image), image.split, unit)

        for folder in _without_images(path, images):
            listing.passed_over[f"folder {folder} without an image"] += 1
        unread = listing.others(images)
        advice = captions_advice(listing)
        return Source(
            kind="image",
            records=records(),
            label_names=names,
            splits=frozenset(image.split for image in placed),
            total=len(placed),
            unread=unread,
            passed_over=listing.passed_over,
            advice=advice,
            doubtful=bool(advice),
            unit_name=persons.unit_name,
            notice=spaced(merged_splits(placed), shards, persons.notice),
        )


def _without_images(path: Path, images: list[Path]) -> list[str]:
    """Returns the folders directly below `path`, and directly below split folders, in which there is no image."""
    filled = {"/".join(file.relative_to(path).parts[:depth]) for file in images for depth in (1, 2)}
    empty = []
    for folder in _folders(path):
        if folder.name not in filled:
            empty.append(folder.name)
        elif split_of(Path(folder.name)):
            below = (f"{folder.name}/{inner.name}" for inner in _folders(folder))
            empty.extend(name for name in below if name not in filled)
    return empty


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and side_folder(entry.name) is None)


def captions_advice(listing: Listing) -> str:
    """Returns advice on files beside images that may describe them: how to import the images with these files and without.

    Args:
        listing: Contents of the folder of images.

    Returns:
        The advice; empty if there are no such files.
    """
    candidates = [file for file in listing.files if suffix(file) in _CAPTIONS | _SETS]
    if not candidates:
        return ""
    access = Access.to(listing.root)
    alone = f"`dpfed data import {shlex.quote(str(listing.root))} DEST --format folder --skip-broken` imports the images alone"
    texts = [file for file in candidates if suffix(file) == ".txt"]
    texts = [file for file in texts[:_TEXTS_TRIED] if is_text_table(file, access)]
    tables = [file for file in candidates if suffix(file) in TABLES][:_TEXTS_TRIED]
    tables = [file for file in tables if names_files(file, access)] + texts
    tables += [file for file in candidates if file.parent == listing.root and holds_entries(file) and names_files(file, access)]
    sets = [file for file in candidates if suffix(file) in _SETS]
    if sets and not tables:
        return f"`dpfed data import {shlex.quote(str(sets[0]))} DEST` imports what that file holds; {alone}."
    if not tables and mostly_captioned(listing, access):
        whole = f"`dpfed data import {shlex.quote(str(listing.root))} DEST --format captioned-folder`"
        return f"If the .txt files named like the images (cat.jpg, cat.txt) hold captions, {whole} imports both; {alone}."
    if not tables and (packing := _packing(listing)):
        return f"If the .json files named like the images (cat.jpg, cat.json) hold captions, `{packing}` imports both; {alone}."
    if not tables:
        return (
            f"Such files may say what the images show. Write their captions or labels into a table with the columns filepath "
            f"and title (or label), and `dpfed data import TABLE DEST --format table` imports it; {alone}."
        )
    return f"`{table_command(listing.root, tables)}` imports the images with what the tables say; {alone}."


def _packing(listing: Listing) -> str:
    """Returns commands that pack images, and JSON files of the same names, into an archive for each split, and import it all.

    The result is empty if fewer than half of the images have a JSON file of the same name.
    """
    root, there = listing.root, set(listing.files)
    twins = [file for file in listing.images() if file.with_suffix(".json") in there]
    if 2 * len(twins) < len(listing.images()):
        return ""
    inner = [file.relative_to(root) for file in twins]
    apart = all(len(file.parts) > 1 and split_of(Path(file.parts[0])) for file in inner)
    places: dict[str, set[bool]] = {}  # folder -> whether its texts lie in folders below
    for file in inner:
        places.setdefault(file.parts[0] if apart else "", set()).add(len(file.parts) > 1 + apart)
    return packed_splits(root, {name: below == {True} for name, below in places.items()})


def table_command(root: Path, tables: Sequence[Path]) -> str:
    """Returns the command that imports the given tables.

    The command names their folder `root` if all lie directly in it, their names contain splits, and none is a .json or .txt
    file. Otherwise the command names up to four of the tables.
    """
    by_folder = all(file.parent == root and suffix(file) in TABLES and split_of(Path(file.name)) for file in tables)
    named = [root] if by_folder else [*tables[:_TABLES_SHOWN]]
    more = " ..." * (len(tables) > _TABLES_SHOWN and not by_folder)
    return f"dpfed data import {' '.join(shlex.quote(str(place)) for place in named)}{more} DEST --format table"
