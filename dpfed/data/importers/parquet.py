"""Imports Parquet files whose columns are as in Hugging Face's `datasets`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpfed.data.decoding import EXTENSIONS
from dpfed.data.importers.access import Access
from dpfed.data.importers.listing import suffix
from dpfed.data.importers.parquet_columns import TEXT_FIELDS, Columns, assign_columns
from dpfed.data.importers.source import (
    SPLIT_NAMES,
    FileRecord,
    Importer,
    Item,
    Source,
    Unreadable,
    captions_in,
    spaced,
    unit_of,
)
from dpfed.data.importers.splits import cells_of_folders, holds, split_files
from dpfed.data.store.record import RecordInput
from dpfed.errors import UserError, nearest

_ROWS_AT_ONCE = 256


class ParquetImporter(Importer):
    """Imports a Parquet file or a folder of Parquet files.

    The names of the files and of their folders may contain splits. If no name contains a split, or one file alone is imported,
    the records are for training, unless a column says otherwise. These columns are read:

    * ``image`` or the like: a ``struct<bytes, path>`` or binary.
    * ``text``, ``caption``, ``sentences``, ``alt_text`` and the like, also with a number at the end: texts, structs with a text
      in ``raw``, ``text`` or ``caption``, or lists of these. All texts of a row are captions of one record.
    * ``label`` and the like: the class, as a text or as a number. The file's ClassLabel metadata may name the numbers.
    * ``unit``, ``person_id``, ``patient_id`` or ``pid``: the unit.
    * ``id``, ``file_name`` and the like: the name of the record.
    * ``split``: the split, if the names of the files and folders give all files the same split. A cell in this column wins
      over the names.

    The id of a record consists of its split and its name. Without a column of names, it consists of the split, the image's
    ``path`` if there is one, and a hash of what the record holds. A folder such as ``label=cat``, as Spark and Hive write it,
    stands for a column of the files below it.
    """

    name = "parquet"
    options = ("id",)
    layout = "a .parquet file, or a folder with train*.parquet and optionally validation*.parquet, test*.parquet"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether `path` is a Parquet file, or a folder with Parquet files and without archives.

        Parquet files beside archives are perhaps only descriptions of the archives.
        """
        if path.is_dir():
            return holds(path, {".parquet"}, access) and not holds(path, {".tar"}, access)
        return path.is_file() and suffix(path) == ".parquet"

    def open(self, path: Path, access: Access | None = None, id: str | None = None) -> Source:
        """Reads the schemas and, if these do not suffice, the columns of labels and splits.

        Images are read when the source's iterator is used.

        Args:
            path: File or folder.
            access: Paths that the import may read.
            id: Column of the records' names, or ``"content"`` for a hash of each record; ``None``: the first known column of
                names, if there is one.

        Raises:
            UserError: If the files cannot be read, belong to several data sets, have no column of images, name unknown splits,
                or disagree about their columns or classes; or if the column `id` cannot name the records.
        """
        dataset = split_files(path, ".parquet", self.layout, access or Access.to(path))
        try:
            opened = [(split, file, *_rows_and_schema(file)) for split, file in dataset.files]
            opened = [entry for entry in opened if entry[2]] or opened  # a file without rows says nothing
            files = [(split, file) for split, file, _, _ in opened]
            one_split = len({split for split, _ in files}) == 1
            top = path if path.is_dir() else path.parent
            given = [(file, schema, cells_of_folders(file.relative_to(top))) for _, file, _, schema in opened]
            assigned = assign_columns(given, id, one_split)
            first = assigned.columns[0]
            by_path = functools.cache(lambda: any(_lacks_bytes(pq.ParquetFile(file), first.image) for _, file in files))
            unread = dataset.unread(lambda file: suffix(file) in EXTENSIONS and by_path())
            splits = _splits(files, assigned.columns)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read Parquet files of {path} ({_why(error)}); copy them again. [parquet-files]") from error
        return Source(
            kind="image-text" if assigned.captioned else "image",
            records=_records(files, assigned.columns),
            label_names=assigned.label_names,
            splits=splits,
            total=sum(rows for _, _, rows, _ in opened),
            unit_name=assigned.unit_name,
            unused=assigned.unused,
            named=first.id is not None,
            unread=[*unread, *assigned.unread],
            passed_over=dataset.passed_over,
            notice=spaced(assigned.notice, dataset.notice),
        )


def _rows_and_schema(file: Path) -> tuple[int, pa.Schema]:
    with pq.ParquetFile(file) as content:  # a data set may have more files than a process may open
        return content.metadata.num_rows, content.schema_arrow


def _splits(files: list[tuple[str, Path]], columns: Sequence[Columns]) -> frozenset[str]:
    """Returns the splits that records have: the splits of the files, or the splits that a column of splits names."""
    cells: set[tuple[str | None, str]] = set()
    for (split, file), roles in zip(files, columns, strict=True):
        if roles.split is None or roles.split in roles.given:
            cells.add((roles.given.get(roles.split or ""), split))
            continue
        batches = pq.ParquetFile(file).iter_batches(columns=[roles.split])
        cells.update((cell, split) for batch in batches for cell in pc.unique(batch.column(0)).to_pylist())
    return frozenset(itertools.starmap(_split_named, cells))


def _split_named(cell: str | None, of_file: str) -> str:
    """Returns the split that a cell of a column of splits names.

    Args:
        cell: Cell. ``restval``, which Karpathy's splits of COCO have, is for training.
        of_file: Split of the file, which an empty cell stands for.

    Raises:
        UserError: If there is no split of this name.
    """
    given = (cell or "").strip().lower()
    if given and given not in SPLIT_NAMES and given != "restval":
        raise UserError(
            f"a column split holds {cell!r}, which is not a split; {nearest(given, SPLIT_NAMES)} [parquet-split-unknown]"
        )
    return SPLIT_NAMES.get(given, "train" if given else of_file)


def _lacks_bytes(file: pq.ParquetFile, image: str) -> bool:
    """Returns whether a file gives some images only by their paths.

    A file's footer says this, too. But if the footer is damaged, asking pyarrow for a column's entry ends the process.

    Args:
        file: Parquet file.
        image: Column of the images.
    """
    if not pa.types.is_struct(file.schema_arrow.field(image).type):
        return False
    batches = file.iter_batches(_ROWS_AT_ONCE, columns=[f"{image}.bytes"])
    return any(pc.struct_field(batch.column(0), "bytes").null_count for batch in batches)


def _records(files: list[tuple[str, Path]], columns: Sequence[Columns]) -> Iterator[Item]:
    """Yields the records of all files. For messages, the rows of each split are numbered.

    Args:
        files: Split and path of each file.
        columns: Roles of the columns of each file.

    Raises:
        UserError: If a file is damaged, a cell of a column of splits names no split, or a class number has no name.
    """
    rows = dict.fromkeys((split for split, _ in files), 0)
    for (split, path), roles in zip(files, columns, strict=True):
        try:
            for batch in pq.ParquetFile(path).iter_batches(_ROWS_AT_ONCE, columns=roles.used()):
                for cells in batch.to_pylist():
                    yield _record(f"{split}/{rows[split]}", cells | roles.given, roles, split, path.parent)
                    rows[split] += 1
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} is damaged after {split} row {rows[split]:,} ({_why(error)}): copy it again. [parquet-broken]"
            ) from error


def _record(place: str, row: dict[str, Any], columns: Columns, split: str, folder: Path) -> Item:
    split = split if columns.split is None else _split_named(row[columns.split], split)
    captions = tuple(dict.fromkeys(text for name in columns.captions for text in _texts(row[name])))
    unit = unit_of(row[columns.unit]) if columns.unit else None
    labels = {}
    for name, classes in columns.labels.items():
        if (number := classes.number(row[name])) is None:
            raise UserError(
                f"record {place!r} has {name} = {row[name]}, but the metadata of its file give names to only "
                f"{len(classes.names or ()):,} classes; correct one of them. [parquet-class-number]"
            )
        labels[name] = number
    image, path = row[columns.image], ""
    if isinstance(image, dict):
        path = str(image.get("path") or "")
        image = image.get("bytes")
    if columns.id is None:
        id = f"{split}/{path}#" if path else f"{split}/"
    elif (named := unit_of(row[columns.id])) is None:
        return Unreadable(f"{place} (a row without a name)", f"no {columns.id}")
    else:
        id = place = f"{split}/{named}"
    if image is None and path:
        return FileRecord(id, folder / path, captions, labels, split, unit, place)
    return Unreadable(place, "no image") if image is None else RecordInput(id, image, captions, labels, split, unit, place)


def _texts(cell: object) -> list[str]:
    if isinstance(cell, dict):
        return next((texts for name in TEXT_FIELDS if (texts := _texts(cell.get(name)))), [])
    if isinstance(cell, list):
        return [text for part in cell for text in _texts(part)]
    return captions_in(cell) if isinstance(cell, str) and cell else []


def _why(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
