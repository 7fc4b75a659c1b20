"""Imports CUHK-PEDES and RSTPReid: pictures of people, each with a few captions, in a JSON file beside a folder of images.

This module also contains the importer of DeepFashion-MultiModal: fashion pictures, each with one caption.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from dpfed.data.importers.access import Access
from dpfed.data.importers.source import SPLIT_NAMES, FileRecord, Importer, Item, Source, not_utf8
from dpfed.errors import UserError, nearest


@dataclass(frozen=True)
class _Entry:
    file: str
    captions: tuple[str, ...]
    split: str
    person: str


class _CaptionedPeopleImporter(Importer):
    """Importer of a JSON list with an entry for each image, and of the images below ``imgs/``.

    An image with all its captions is one record; its id is the image's path in the list. The privacy unit is the person: a
    person has several images, all in one split.

    Attributes:
        file: Name of the JSON file.
        image_key: Key of the image's path in an entry.
    """

    file: ClassVar[str]
    image_key: ClassVar[str]

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether `path` is the list of records, or its folder, and whether a folder ``imgs`` is beside the list."""
        annotations = path / self.file if path.is_dir() else path
        return annotations.name == self.file and annotations.is_file() and (annotations.parent / "imgs").is_dir()

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Reads the list (not the images) and streams the records.

        Raises:
            UserError: If `path` is not laid out as expected, or cannot be read.
        """
        annotations = path / self.file if path.is_dir() else path
        images = annotations.parent / "imgs"
        entries = self._entries(annotations, access or Access.to(path))
        if not images.is_dir():
            raise UserError(f"{annotations} needs a folder {images}; expected {self.layout}. [paper-no-images]")

        def records() -> Iterator[Item]:
            for entry in entries:
                yield FileRecord(entry.file, images / entry.file, entry.captions, {}, entry.split, entry.person)

        splits = frozenset(entry.split for entry in entries)
        return Source("image-text", records(), splits=splits, total=len(entries), unit_name="person")

    def _entries(self, annotations: Path, access: Access) -> list[_Entry]:
        keys = f"id, {self.image_key}, captions (a list of strings) and split"
        listed = read_json(annotations, self.layout, access)
        if not isinstance(listed, list):
            raise UserError(
                f"{annotations} does not contain a JSON list; expected a list of entries with {keys}. [paper-no-list]"
            )
        return [self._entry(raw, f"{annotations}: entry {number}", keys) for number, raw in enumerate(listed, start=1)]

    def _entry(self, raw: Any, where: str, keys: str) -> _Entry:
        if not isinstance(raw, dict):
            raise UserError(f"{where} is not an object; expected the keys {keys}. [paper-entry-type]")
        person, file, captions, split = (cast(Any, raw.get(key)) for key in ("id", self.image_key, "captions", "split"))
        faults = {
            "id": isinstance(person, bool) or not isinstance(person, int | str) or not str(person).strip(),
            self.image_key: not isinstance(file, str) or not file,
            "captions": not isinstance(captions, list) or not all(isinstance(caption, str) for caption in captions),
            "split": not isinstance(split, str),
        }
        for key, faulty in faults.items():
            if faulty:
                raise UserError(f"{where} has no valid '{key}'; expected the keys {keys}. [paper-entry-key]")
        if split not in SPLIT_NAMES:
            raise UserError(f"{where} has the unknown split {split!r}; {nearest(split, SPLIT_NAMES)} [paper-split]")
        return _Entry(file, tuple(captions), SPLIT_NAMES[split], str(person).strip())


class CuhkPedesImporter(_CaptionedPeopleImporter):
    """Importer of CUHK-PEDES: 40,206 images of 13,003 people, two captions for each image, with its own splits."""

    name = "cuhk-pedes"
    layout = "reid_raw.json (or its folder) beside imgs/: a list of entries with id, file_path, captions and split"
    file = "reid_raw.json"
    image_key = "file_path"


class RstpReidImporter(_CaptionedPeopleImporter):
    """Importer of RSTPReid: five images of each of 4,101 people, two captions for each image, with its own splits."""

    name = "rstpreid"
    layout = "data_captions.json (or its folder) beside imgs/: a list of entries with id, img_path, captions and split"
    file = "data_captions.json"
    image_key = "img_path"


def read_json(path: Path, layout: str, access: Access) -> Any:
    """Reads a JSON file.

    Args:
        path: Path of the file.
        layout: Description of the expected file, for messages.
        access: Access that decides which files may be read.

    Raises:
        UserError: If the file is missing, may not be read, or is not JSON in UTF-8.
    """
    try:
        return json.loads(access.file(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; expected {layout}. [paper-unreadable]") from error
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); expected {layout}. [paper-not-json]") from error


_ITEM = re.compile(r"-(id_\d+)-")
_PEEK = 4096  # bytes of captions.json that are read to recognise the data set


class DeepFashionImporter(Importer):
    """Importer of DeepFashion-MultiModal: ``captions.json``, which maps file names to captions, and the images in ``images/``.

    The file name is the record's id. The privacy unit is the item, DeepFashion's word for one piece of clothing that was
    photographed several times; its id is part of the file name (``MEN-Denim-id_00000080-01_7_additional.jpg``). The unit is not
    the person: a fashion model wears several items. The data set has no official splits, so all records are for training unless
    some are held out.
    """

    name = "deepfashion-mm"
    layout = "captions.json (or its folder) beside images/: an object that maps file names (X-id_00000080-Y.jpg) to captions"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether captions.json begins with file names of DeepFashion, and ``images/`` is beside it.

        If captions.json may not be read, ``images/`` suffices; `open` then raises an error.

        Args:
            path: Path of captions.json, or of its folder.
            access: Access that decides which files may be read.
        """
        captions = path / "captions.json" if path.is_dir() else path
        if captions.name != "captions.json" or not captions.is_file() or not (captions.parent / "images").is_dir():
            return False
        if not (access or Access.to(path)).permits(captions):
            return True  # `open` then raises an error with a message
        with captions.open("rb") as file:
            return _ITEM.search(file.read(_PEEK).decode(errors="replace")) is not None

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Reads the captions (not the images) and streams the records.

        Raises:
            UserError: If `path` is not laid out as expected, or cannot be read.
        """
        file = path / "captions.json" if path.is_dir() else path
        images = file.parent / "images"
        captions = read_json(file, self.layout, access or Access.to(path))
        if not isinstance(captions, dict):
            raise UserError(
                f"{file} does not contain a JSON object; expected an object that maps file names to captions. [paper-no-object]"
            )
        items = [_item(name, caption, f"{file}: entry {n}") for n, (name, caption) in enumerate(captions.items(), start=1)]
        if not images.is_dir():
            raise UserError(f"{file} needs a folder {images}; expected {self.layout}. [paper-item-no-images]")

        def records() -> Iterator[Item]:
            for (name, caption), item in zip(captions.items(), items, strict=True):
                yield FileRecord(name, images / name, (caption,), {}, "train", item)

        return Source("image-text", records(), total=len(captions), unit_name="item")


def _item(name: str, caption: object, where: str) -> str:
    """Returns the id of the item that a file shows.

    Args:
        name: Name of the file.
        caption: Caption of the file.
        where: Place of the entry, for messages.

    Raises:
        UserError: If the name contains no item id, or the caption is not a string.
    """
    match = _ITEM.search(name)
    if match is None:
        raise UserError(f"{where} is {name!r}, without an id; expected a name such as X-id_00000080-Y.jpg. [paper-item-id]")
    if not isinstance(caption, str):
        raise UserError(f"{where} ({name}) has no string as its caption; expected a string for each file. [paper-item-caption]")
    return match[1]
