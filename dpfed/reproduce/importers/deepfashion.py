"""DeepFashion-MultiModal: fashion pictures, each with one caption."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dpfed.data.importers.access import Access
from dpfed.data.importers.source import FileRecord, Importer, Item, Source
from dpfed.errors import UserError
from dpfed.reproduce.importers.captioned_people import read_json

_ITEM = re.compile(r"-(id_\d+)-")
_PEEK = 4096  # bytes of captions.json that tell whose it is


class DeepFashionImporter(Importer):
    """``captions.json``, an object of file name -> caption, and the images in ``images/``; the file name is the record's id.

    The unit is the item, DeepFashion's word for one piece of clothing that was photographed several times; its id is part
    of the file name (``MEN-Denim-id_00000080-01_7_additional.jpg``). It is not the person: one model wears several items.
    The data set has no official splits, so everything is for training unless records are held out.
    """

    name = "deepfashion-mm"
    layout = "captions.json (or its folder) beside images/, an object of file names such as X-id_00000080-Y.jpg to captions"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Whether captions.json (or its folder) begins with such a file name, and the images are there."""
        captions = path / "captions.json" if path.is_dir() else path
        if captions.name != "captions.json" or not captions.is_file() or not (captions.parent / "images").is_dir():
            return False
        if not (access or Access.to(path)).permits(captions):
            return True  # to be refused in words
        with captions.open("rb") as file:
            return _ITEM.search(file.read(_PEEK).decode(errors="replace")) is not None

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Reads the captions (not the images) and streams the records."""
        file = path / "captions.json" if path.is_dir() else path
        images = file.parent / "images"
        captions = read_json(file, self.layout, access or Access.to(path))
        if not isinstance(captions, dict):
            raise UserError(f"{file} holds no object; expected one of file names to captions.")
        items = [_item(name, caption, f"{file}: entry {n}") for n, (name, caption) in enumerate(captions.items(), start=1)]
        if not images.is_dir():
            raise UserError(f"{file} names images in {images}, which is no folder; expected {self.layout}.")

        def records() -> Iterator[Item]:
            for (name, caption), item in zip(captions.items(), items, strict=True):
                yield FileRecord(name, images / name, (caption,), {}, "train", item)

        return Source("image-text", records(), total=len(captions), unit_name="item")


def _item(name: str, caption: object, where: str) -> str:
    """The item that a file shows."""
    found = _ITEM.search(name)
    if found is None:
        raise UserError(f"{where} is {name!r}, without an item's id; expected a file name such as X-id_00000080-Y.jpg.")
    if not isinstance(caption, str):
        raise UserError(f"{where} ({name}) has no text as its caption; expected file names to captions.")
    return found[1]
