"""Tables among other files: by their names, and by what they begin with."""

from __future__ import annotations

import re
from pathlib import Path

from dpfed.data.importers.access import Access
from dpfed.data.importers.listing import list_files, suffix
from dpfed.data.importers.source import known_columns, plain
from dpfed.data.importers.splits import split_of
from dpfed.data.importers.table_rows import TABLES, header_of, is_flickrs

# Names of a column of image files; those of the second kind count where there is none of the first.
FILES = ("filepath", "image", "image_path", "file", "path", "img", "filename")
OTHER_FILES = ("image_name", "image_file", "img_path", "img_name")
_COCO = re.compile(r"(captions|dataset)_\w+\.json")  # of COCO itself, and Karpathy's


def tables_of(folder: Path, access: Access) -> tuple[list[Path], bool]:
    """The tables that say what the images in a folder show, and whether their names say that they do.

    These are ``metadata.csv`` and ``metadata.jsonl`` in it or below it, as Hugging Face's image folders have them, or COCO's or
    Flickr's captions; otherwise all tables that lie in the folder itself.
    """
    direct = sorted(file for file in folder.iterdir() if suffix(file) in TABLES and not file.name.startswith("."))
    if direct and all(split_of(Path(table.name)) for table in direct):
        return direct, False
    files = list_files(folder, access).files
    metadata = [file for file in files if file.stem.lower() == "metadata" and suffix(file) in TABLES]
    if metadata and all("filename" in map(plain, header_of(file, access)) for file in metadata):
        return metadata, True
    captions = [file for file in files if is_captions(file)]
    return (captions, True) if captions and not direct else (direct, False)


def is_captions(file: Path) -> bool:
    """Whether a file has the name, and the beginning, of COCO's or Flickr's captions."""
    if suffix(file) == ".json":
        return _COCO.fullmatch(file.name) is not None
    return ".token" in file.name and "lemma" not in file.name and is_flickrs(file)


def is_text_table(path: Path, access: Access) -> bool:
    """Whether a ``.txt`` file is a table, as Flickr's captions are in some copies."""
    return suffix(path) == ".txt" and len(header_of(path, access)) > 1 and names_files(path, access)


def names_files(table: Path, access: Access) -> bool:
    """Whether a table has a column of image files."""
    return bool(known_columns(header_of(table, access), FILES + OTHER_FILES))
