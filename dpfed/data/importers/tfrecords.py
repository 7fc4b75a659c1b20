"""Converts TFRecord files to Parquet files, one for each split.

dpfed does not import TFRecord files. The error that refuses them gives a command that runs `main`. The command needs the
package tfrecord.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpfed.data.importers.access import Access
from dpfed.data.importers.listing import list_files
from dpfed.data.importers.splits import split_of
from dpfed.data.store.record import SPLITS

_TFRECORD = re.compile(r".*\.tfrec(ords?)?([-.]\d.*)?", re.IGNORECASE | re.DOTALL)


def is_tfrecord(file: Path) -> bool:
    """Returns whether a file is a TFRecord file by its name, such as ``train.tfrecord-00000-of-00010``."""
    return _TFRECORD.fullmatch(file.name) is not None


def by_split(source: Path, files: Sequence[Path]) -> dict[str | None, list[Path]]:
    """Returns the files of each split, and under ``None`` the files without a split.

    The names of files and folders contain the splits (`dpfed.data.importers.splits.split_of`). If no name contains a
    split, or `source` is a file, all files are for training.

    Args:
        source: File or folder that is converted.
        files: TFRecord files of the source.
    """
    splits = {file: None if file == source else split_of(file.relative_to(source)) for file in files}
    if not any(splits.values()):
        return {"train": [*files]}
    return {split: of_split for split in (*SPLITS, None) if (of_split := [file for file in files if splits[file] == split])}


def convert(source: Path, target: Path, outside: bool = False) -> None:
    """Writes the records of each split into a Parquet file ``target/SPLIT.parquet``.

    If some files have a split, the files without one are left out.

    Args:
        source: File or folder that is converted.
        target: Folder for the Parquet files, which must exist.
        outside: Whether files outside of the source's folder are read, too, if links lead to them.

    Raises:
        SystemExit: If the package tfrecord cannot be loaded.
        UserError: If the folder cannot be read.
        OSError: If a file cannot be read or written.
    """
    try:
        reader = importlib.import_module("tfrecord.reader")
    except ImportError as error:
        sys.exit(f"cannot load the package tfrecord ({error}); install it: pip install tfrecord")
    files = list_files(source, Access.to(source, outside)).files if source.is_dir() else [source]
    for split, of_split in by_split(source, sorted(filter(is_tfrecord, files))).items():
        if split is not None:
            records = [record for file in of_split for record in reader.tfrecord_loader(str(file), None)]
            names = dict.fromkeys(name for record in records for name in record)
            columns = {name: _cells([record.get(name) for record in records]) for name in names}
            pq.write_table(pa.table(columns), target / f"{split}.parquet")


def main() -> None:
    """Converts what the command line names: ``[--allow-outside] SOURCE TARGET``, see `convert`."""
    *options, source, target = sys.argv[1:]
    convert(Path(source), Path(target), outside="--allow-outside" in options)


def _cells(values: Sequence[Any]) -> list[Any]:
    """Returns the cells of a column.

    Bytes become strings if all of them are UTF-8; otherwise, they stay bytes. Arrays become numbers if none has more than one
    entry, and an empty array then becomes ``None``; otherwise, arrays become lists.

    Args:
        values: Bytes or array of each record; ``None``: the record has no value.
    """
    present = [value for value in values if value is not None]
    if all(isinstance(value, bytes) for value in present):
        with contextlib.suppress(UnicodeDecodeError):
            return [None if value is None else value.decode() for value in values]
        return [*values]
    if any(len(value) > 1 for value in present):
        return [None if value is None else value.tolist() for value in values]
    return [None if value is None or not len(value) else value.tolist()[0] for value in values]
