"""Reads the rows of tables that describe images: CSV and similar tables, JSON, and captions of COCO and Flickr.

This module also finds the tables among other files, by their names and by how they begin.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dpfed.data.decoding import EXTENSIONS
from dpfed.data.importers.access import Access
from dpfed.data.importers.listing import list_files, suffix
from dpfed.data.importers.parquet_columns import TEXT_FIELDS
from dpfed.data.importers.source import FILE_COLUMNS, known_columns, not_utf8, plain
from dpfed.data.importers.splits import split_of
from dpfed.errors import UserError
from dpfed.files.hidden import is_hidden

Cells = dict[str, str | list[str]]  # cells by column; a list: several captions
Rows = Iterator[tuple[int, Cells]]  # each row with the number of the line, or of the entry, in which it begins

TABLES = frozenset({".csv", ".tsv", ".jsonl", ".ndjson"})
LINES_OF_JSON = frozenset({".jsonl", ".ndjson"})
_TOKEN = re.compile(r"([^\t#]+\.\w+)#\d+\t(.*)", re.DOTALL)  # Flickr8k and Flickr30k
_SEPARATOR = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE | re.DOTALL)  # what Excel writes into the first line
_LIST = re.compile(r"(?i:flickr_?\d+k\.(train|dev|test)images\.txt)")
_PEEK = 4096  # characters of a first line
_END = "\x1aend of the table"
_LONGEST = csv.field_size_limit()  # characters of a cell


def read_table(path: Path, access: Access, layout: str) -> tuple[list[str], Rows]:
    """Returns the columns of a table, and an iterator over its rows.

    Args:
        path: Path of the table.
        access: Paths that the import may read.
        layout: Expected layout, for messages.

    Raises:
        UserError: If the table cannot be read, or a row does not fit the header. The iterator over the rows raises this error,
            too.
    """
    rows = _in_words(access.file(path), layout)
    _, names = next(rows)
    return names, rows


def header_of(path: Path, access: Access) -> list[str]:
    """Returns the columns of a table; no columns if the table cannot be read."""
    try:
        return read_table(path, access, "")[0]
    except UserError:
        return []


def _in_words(path: Path, layout: str) -> Iterator[Any]:
    try:
        yield from _rows(path)
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error
    except (OSError, csv.Error, RecursionError) as error:
        raise UserError(f"cannot read the table {path}: {error}; expected {layout}. [table-unreadable]") from error


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    if suffix(path) in LINES_OF_JSON:
        return _of_json([*_json_lines(path)])
    if suffix(path) == ".json":
        return _of_json(_json_entries(path))
    return _of_tokens(path) if is_flickrs(path) else _of_csv(path)


def is_flickrs(path: Path) -> bool:
    """Returns whether a file begins like the captions of Flickr8k and Flickr30k: ``FILE#NUMBER<tab>CAPTION``."""
    if not path.is_file():  # a pipe would wait for ever
        return False
    try:
        with path.open(encoding="utf-8-sig") as file:
            return _TOKEN.fullmatch(file.readline(_PEEK)) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _of_csv(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields the header of a CSV table, then its rows, each with the number of its line.

    The line ``sep=;`` that Excel may write first says what separates the cells. Without this line, the header shows it.

    Raises:
        UserError: If a quotation mark is not closed, or a row does not fit the header.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        said = _SEPARATOR.fullmatch(header := file.readline())
        before = 1 if said else 0
        if said:
            header = file.readline()
        delimiter = said[1] if said else "\t" if "\t" in header else max(",;|", key=header.count)
        reader = csv.reader(_ended(itertools.chain([header], file)), delimiter=delimiter)
        names: list[str] | None = None
        last = before
        try:
            for cells in reader:
                line, last = last + 1, reader.line_num + before
                if not cells or cells == [_END]:
                    continue
                if cells[-1].endswith(_END):
                    raise UserError(f"a quotation mark of {path}:{line} is never closed; close or remove it. [table-unclosed]")
                if names is None:
                    names = [name.strip() for name in cells]
                    yield line, names
                else:
                    _refuse_torn(f"{path}:{line}", names, cells, delimiter)
                    yield line, {name: cell for name, cell in zip(names, cells, strict=False) if name}
        except csv.Error as error:
            if "field larger" not in str(error):
                raise
            raise UserError(
                f"{path}:{last + 1} begins a cell of over {_LONGEST:,} characters; close its quotation mark, or shorten "
                "it. [table-cell-long]"
            ) from error
    if names is None:
        yield 1, []


def _ended(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines, each with a line break at its end, and after them a mark that is in no table.

    If a quotation mark is never closed, the last cell ends with this mark.
    """
    for line in lines:
        yield line if line.endswith(("\n", "\r")) else f"{line}\n"
    yield _END


def _refuse_torn(where: str, names: list[str], cells: list[str], delimiter: str) -> None:
    """Refuses a row in which a separator divides a text, or a cell contains the next rows: words would be lost.

    Args:
        where: Place of the row, for messages.
        names: Columns of the table.
        cells: Cells of the row.
        delimiter: Separator of the cells.

    Raises:
        UserError: If it refuses the row.
    """
    if any(map(str.strip, cells[len(names) :])):
        raise UserError(
            f"{where} has more cells than the header; put texts that contain the separator in quotation marks. "
            "[table-many-cells]"
        )
    if delimiter == "\t" and any("\t" in cell for cell in cells):
        raise UserError(f"{where} holds a cell with tabs; is there a quotation mark too many before it? [table-cell-tabs]")
    inner = (line.split(delimiter) for cell in cells if "\n" in cell for line in cell.splitlines()[1:])
    if any(len(row) == len(names) and any(suffix(Path(text.strip())) in EXTENSIONS for text in row) for row in inner):
        raise UserError(f"{where} begins a cell that holds the next rows; close its quotation mark. [table-cell-swallows]")


def _of_tokens(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields the columns and the rows of Flickr's captions, whose lines are ``FILE#NUMBER<tab>CAPTION``.

    Files such as ``Flickr_8k.trainImages.txt`` in the same folder list the images of each split.

    Raises:
        UserError: If a line has another form.
    """
    splits = {}
    for file in sorted(path.parent.iterdir()):
        if (match := _LIST.fullmatch(file.name)) and file.is_file() and not file.is_symlink():
            for name in file.read_text(encoding="utf-8-sig").split("\n"):
                splits[name.strip()] = match[1].lower()
    yield 1, ["filepath", "title", "split"]
    with path.open(encoding="utf-8-sig") as file_of_lines:
        for line, text in enumerate(file_of_lines, start=1):
            if match := _TOKEN.fullmatch(text):
                yield line, {"filepath": match[1], "title": match[2].strip(), "split": splits.get(match[1], "")}
            elif text.strip():
                raise UserError(f"{path}:{line} is not FILE#NUMBER<tab>CAPTION; correct it. [table-flickr-line]")


def _of_json(entries: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[tuple[int, Any]]:
    yield 1, list(dict.fromkeys(name for _, entry in entries for name in entry))
    for line, entry in entries:
        yield line, {name: _cell(value) for name, value in entry.items()}


def _cell(value: object) -> str | list[str]:
    if isinstance(value, list):
        return [text for part in value if isinstance(text := _cell(part), str)]
    if isinstance(value, dict):
        return _cell(next((value[name] for name in TEXT_FIELDS if value.get(name)), None))
    return "" if value is None else str(value)


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, start=1):
            if text.strip():
                yield line, _object(text, f"{path}:{line}")


def _json_entries(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Returns the entries of a JSON file: an array of objects, COCO's captions, or one object in each line.

    Raises:
        UserError: If the file has another form.
    """
    text = path.read_text(encoding="utf-8-sig")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if is_object(text.partition("\n")[0]):
            return [*_json_lines(path)]
        value = _object(text, str(path))
    if not isinstance(value, list):
        return [*_of_coco(value, path)]
    if odd := next((number for number, entry in enumerate(value, start=1) if not isinstance(entry, dict)), None):
        raise UserError(f"{path}: entry {odd} of the JSON array is not an object; correct it. [table-json-array]")
    return [*enumerate(value, start=1)]


def is_object(text: str) -> bool:
    """Returns whether a text is one JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _of_coco(content: Any, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields an entry for each captioned image of COCO's captions, or of Karpathy's version of them.

    COCO's captions are in ``annotations`` beside ``images``; Karpathy's are in the ``sentences`` of each image.

    Raises:
        UserError: If the content has another form.
    """
    if not isinstance(content, dict):
        raise UserError(
            f"{path} holds {type(content).__name__}, expected a list of objects, an object on each line, or COCO's captions. "
            "[table-json-content]"
        )
    try:
        images: dict[Any, Any] = {}
        for number, image in enumerate(content["images"]):
            if images.setdefault(id := image.get("id", number), image) != image:
                raise UserError(f"{path}: two different images have the id {id!r}; give each its own. [table-coco-id]")
        captions: dict[Any, list[Any]] = {id: list(image.get("sentences") or ()) for id, image in images.items()}
        for annotation in content.get("annotations", ()):
            captions[annotation["image_id"]].append(annotation["caption"])
        for number, (id, image) in enumerate(images.items(), start=1):
            file = image["file_name"] if "file_name" in image else image["filename"]
            split = {"restval": "train"}.get(image.get("split", ""), image.get("split", ""))
            if captions[id]:
                yield number, {"filepath": file, "title": captions[id], "split": split}
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not laid out as COCO's captions ({type(error).__name__} {error}): expected images with file_name and "
            "id, and annotations with image_id and caption. [table-coco-layout]"
        ) from error


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}); correct it. [table-json-line]") from error
    if not isinstance(value, dict):
        raise UserError(f"{where} holds {type(value).__name__}, and not a JSON object; correct it. [table-json-object]")
    return value


_COCO = re.compile(r"(captions|dataset)_\w+\.json")  # names of COCO's files, and of Karpathy's


def tables_of(folder: Path, access: Access) -> tuple[list[Path], bool]:
    """Finds the tables that say what the images in a folder show.

    Tables of these kinds are looked for, in this order, and those of the first kind that is found are returned:

    * the tables directly in the folder, if all their names contain splits;
    * files such as ``metadata.csv`` and ``metadata.jsonl`` in the folder or below it, as in Hugging Face's image folders, if
      all have a column ``file_name``;
    * other tables directly in the folder;
    * COCO's or Flickr's captions in the folder or below it.

    Returns:
        The tables, and whether they are of the second or the last kind, whose names show that they describe images.

    Raises:
        UserError: If the folder cannot be read.
    """
    files = list_files(folder, access).files
    entries = (file for file in folder.iterdir() if suffix(file) in TABLES and not is_hidden(file))
    direct = sorted(file for file in entries if not file.is_dir())
    if direct and all(split_of(Path(table.name)) for table in direct):
        return direct, False
    metadata = [file for file in files if file.stem.lower() == "metadata" and suffix(file) in TABLES]
    if metadata and all("filename" in map(plain, header_of(file, access)) for file in metadata):
        return metadata, True
    captions = [file for file in files if is_captions(file)]
    return (captions, True) if captions and not direct else (direct, False)


def is_captions(file: Path) -> bool:
    """Returns whether a file seems to hold captions: COCO's by its name, or Flickr's by its name and first line."""
    if suffix(file) == ".json":
        return _COCO.fullmatch(file.name) is not None
    return ".token" in file.name and "lemma" not in file.name and is_flickrs(file)


def holds_entries(file: Path) -> bool:
    """Returns whether a file is a JSON file with entries, which are like rows of a table. All of the file is read."""
    try:
        return suffix(file) == ".json" and file.is_file() and bool(_json_entries(file))
    except (UserError, OSError, UnicodeDecodeError):
        return False


def is_text_table(path: Path, access: Access) -> bool:
    """Returns whether a ``.txt`` file is a table with a column of image files, as in some copies of Flickr's captions."""
    return suffix(path) == ".txt" and len(header_of(path, access)) > 1 and names_files(path, access)


def names_files(table: Path, access: Access) -> bool:
    """Returns whether a table has a column with a usual name for the paths of image files, such as ``filepath``."""
    return bool(known_columns(header_of(table, access), FILE_COLUMNS))
