"""Folders of image files, with or without class folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dpfed.data.importers.source import SPLIT_NAMES, Importer, Item, Source, file_record
from dpfed.data.pixels import EXTENSIONS
from dpfed.errors import UserError

_INSTEAD = {
    "metadata.csv": "import that file itself, with --format table",
    "metadata.jsonl": "make a table (CSV) of it, and import that",
    "metadata.parquet": "make a table (CSV) of it, and import that",
}


class FolderImporter(Importer):
    """``root/class/x.jpg``, or the same under ``root/train``, ``root/val`` and ``root/test`` (ImageNet's layout too).

    The id of a record is its path below the root; images that lie outside a class folder have no label.
    """

    name = "folder"
    layout = "a folder of images, of class folders, or of train/ val/ test/ folders with class folders"

    def recognises(self, path: Path) -> bool:
        """Whether there is an image somewhere below."""
        return path.is_dir() and next(image_files(path), None) is not None

    def open(self, path: Path) -> Source:
        """Lists the images (names only) and streams them."""
        if not path.is_dir():
            raise UserError(f"{path} is not a folder; the 'folder' importer expects {self.layout}.")
        roots = _split_roots(path)
        for listing in (root / name for root in (path, *(root for _, root in roots)) for name in _INSTEAD):
            if listing.exists():
                instead = _INSTEAD[listing.name]
                raise UserError(f"{listing} lists captions or labels that the 'folder' importer does not read: {instead}.")
        files = []
        for split, root in roots:
            for file in image_files(root):
                below = file.relative_to(root).parts
                files.append((split, file, below[0] if len(below) > 1 else None))
        if not files:
            raise UserError(f"there are no images in {path}; the 'folder' importer expects {self.layout}.")
        classes = sorted({name for _, _, name in files if name is not None})
        numbers = {name: number for number, name in enumerate(classes)}

        def records() -> Iterator[Item]:
            for split, file, name in files:
                labels = {} if name is None else {"label": numbers[name]}
                yield file_record(file.relative_to(path).as_posix(), file, (), labels, split)

        names = {"label": classes} if classes else {}
        return Source("image", records(), names, frozenset(split for split, _, _ in files), len(files))


def image_files(root: Path) -> Iterator[Path]:
    """Image files below a folder, by extension, in the order of their names; hidden ones are left out."""
    for folder, names, files in os.walk(root, followlinks=True):
        names[:] = sorted(name for name in names if not name.startswith("."))
        for file in sorted(files):
            if not file.startswith(".") and os.path.splitext(file)[1].lower() in EXTENSIONS:
                yield Path(folder, file)


def _split_roots(path: Path) -> list[tuple[str, Path]]:
    """(split, folder) pairs: the split folders when there is a training one, else everything as training records."""
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    splits = [(SPLIT_NAMES[folder.name.lower()], folder) for folder in folders if folder.name.lower() in SPLIT_NAMES]
    if "train" not in {split for split, _ in splits}:
        return [("train", path)]
    for folder in folders:
        if folder.name.lower() not in SPLIT_NAMES and next(image_files(folder), None) is not None:
            raise UserError(f"{folder} holds images but is no split beside train/; move it, or name it val or test.")
    return splits
