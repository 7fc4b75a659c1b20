"""Writes commands with which the user can convert data of other formats to a format that dpfed reads.

If possible, the commands need nothing but the Python that runs dpfed, and pyarrow.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpfed.data.decoding import EXTENSIONS
from dpfed.data.importers.access import Access
from dpfed.data.importers.listing import list_files, suffix
from dpfed.data.importers.tfrecords import by_split, is_tfrecord

_SHEETS = frozenset({".xlsx", ".xls", ".xlsm", ".ods"})
_PACK = (
    "import glob, sys, tarfile; t = tarfile.open(sys.argv[1], 'w', dereference=True); "
    "[t.add(f) for f in sorted(glob.glob('{pattern}'))]; t.close()"
)
_ARROW = (
    "import pathlib as p, sys, pyarrow as a, pyarrow.parquet as q; "
    "[o.parent.mkdir(parents=True, exist_ok=True) or q.write_table(a.ipc.open_{kind}(a.memory_map(str(f))).read_all(), o) "
    "for f in p.Path(sys.argv[1]).rglob('*.arrow') "
    "for o in [p.Path(sys.argv[2], f.relative_to(sys.argv[1])).with_suffix('.parquet')]]"
)
_ARROW_FILE = (
    "import sys, pyarrow as a, pyarrow.parquet as q; "
    "q.write_table(a.ipc.open_{kind}(a.memory_map(sys.argv[1])).read_all(), sys.argv[2])"
)
_TFRECORDS = "from dpfed.data.importers.tfrecords import main; main()"
_JSON = "import json, sys; c = json.load(open(sys.argv[1], encoding='utf-8-sig')); "
_CAPTIONS = _JSON + "[print(json.dumps({'filepath': f, 'title': t})) for f, t in c.items()]"
_FIELDS = _JSON + "[print(json.dumps({'filepath': f, **e})) for f, e in c.items()]"
_TABLE = "import sys, pyarrow.csv as c, pyarrow.parquet as q; c.write_csv(q.read_table(sys.argv[1]), sys.argv[2])"
_COLUMNS = _JSON + "[print(json.dumps({k: v[i] for k, v in c.items()})) for i in next(iter(c.values()))]"


def packing(folder: Path, archive: Path, only_folders: bool = False) -> str:
    """Returns the command that packs the contents of a folder into a tar archive, sorted by name, with files in place of links.

    Args:
        folder: Folder to pack.
        archive: Path of the archive to write.
        only_folders: Whether files that lie in the folder itself are left out, so that only its subfolders are packed.
    """
    pack = _PACK.format(pattern="*/" if only_folders else "*")
    return f"(cd {shlex.quote(str(folder))} && {_python(pack)} {shlex.quote(str(archive))})"


def without_links(archive: Path) -> str:
    """Returns the commands that make a copy of an archive in which files stand in place of links between its members."""
    unpacked, new = (archive.with_name(f"{archive.name}-{what}") for what in ("unpacked", "without-links.tar"))
    unpack = (
        f"{shlex.quote(sys.executable)} -m tarfile --filter data -e {shlex.quote(str(archive))} {shlex.quote(str(unpacked))}"
    )
    return f"{unpack} && {packing(unpacked, new)}"


def conversion(source: Path, access: Access) -> str:
    """Returns a text that names the format of a source, and says how to convert and import the source, mostly by commands.

    Args:
        source: File or folder that no importer recognises.
        access: Paths that the import may read.

    Returns:
        The text; empty if dpfed does not know the format.

    Raises:
        UserError: If the folder cannot be read.
        OSError: If an Arrow file cannot be read.
    """
    files = list_files(source, access).files if source.is_dir() else [source]
    if arrow := [file for file in files if suffix(file) == ".arrow"]:
        whole = source.is_dir()
        target = source.with_name(f"{source.name}-parquet") if whole else _free(source.with_suffix(".parquet"))
        program = (_ARROW if whole else _ARROW_FILE).format(kind="stream" if _is_stream(arrow[0]) else "file")
        return (
            f"{arrow[0]} is an Arrow file, as save_to_disk of Hugging Face's datasets writes it. "
            f"{_then(f'{_python(program)} {_quoted(source, target)}', target)}"
        )
    if records := [file for file in files if is_tfrecord(file)]:
        return _of_tfrecords(source, records, access)
    if not source.is_dir() and suffix(source) in _SHEETS:
        return f"{source} is a spreadsheet: save it as CSV (UTF-8) in the same folder, and import the CSV file."
    if not source.is_dir() and suffix(source) == ".json":
        return _of_json(source)
    return ""


def table_of_parquet(file: Path) -> str:
    """Returns a sentence with commands that convert a Parquet file of texts and numbers to a CSV table, and import it."""
    table = _free(file.with_suffix(".csv"))
    return _then(f"{_python(_TABLE)} {_quoted(file, table)}", table)


def _of_tfrecords(source: Path, files: Sequence[Path], access: Access) -> str:
    """Returns a text with the commands that convert the TFRecord files of each split to a Parquet file, and import the result.

    Args:
        source: File or folder that is imported.
        files: TFRecord files of the source.
        access: Paths that the import may read.
    """
    target = source.with_name(f"{source.name}-parquet")
    left = by_split(source, files).get(None, [])
    more = (
        f" The command leaves out files whose names contain no split ({len(left):,}), such as {left[0]}: rename these."
        if left
        else ""
    )
    program = _python(_TFRECORDS) + " --allow-outside" * access.outside
    made = f"mkdir {_quoted(target)} && {program} {_quoted(source, target)}"
    return f"{files[0]} is a TFRecord file. With the package tfrecord (pip install tfrecord), {_then(made, target)}{more}"


def _of_json(source: Path) -> str:
    try:
        content: Any = json.loads(source.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return ""
    if not isinstance(content, dict) or not content:
        return ""
    target = _free(source.with_suffix(".jsonl"))
    values = list(content.values())
    if all(isinstance(value, dict) for value in values) and any(suffix(Path(name)) in EXTENSIONS for name in content):
        what, command = "a JSON object of file names, each with its fields", _FIELDS
    elif all(isinstance(value, dict) for value in values) and len({tuple(value) for value in values}) == 1:
        what, command = "JSON of columns, as pandas' `to_json` writes it", _COLUMNS
    elif all(isinstance(value, str | list) for value in values):
        what, command = "a JSON object of file names and captions", _CAPTIONS
    else:
        return ""
    return f"{source} is {what}. {_then(f'{_python(command)} {_quoted(source)} > {_quoted(target)}', target)}"


def _is_stream(file: Path) -> bool:
    """Returns whether an Arrow file is in the streaming format, which has no index at its end."""
    with file.open("rb") as content:
        return content.read(6) != b"ARROW1"


def _free(path: Path) -> Path:
    """Returns the path or, if something is there that a command would overwrite, a path with a number, such as ``x-2.csv``."""
    paths = itertools.chain([path], (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(2)))
    return next(place for place in paths if not os.path.lexists(place))


def _then(command: str, target: Path) -> str:
    return f"`{command} && dpfed data import {_quoted(target)} DEST` converts and imports it."


def _python(program: str) -> str:
    return f'{shlex.quote(sys.executable)} -c "{program}"'


def _quoted(*paths: Path) -> str:
    return " ".join(shlex.quote(str(path)) for path in paths)


def packed_splits(root: Path, places: dict[str, bool]) -> str:
    """Returns the commands that pack a folder, or its splits, and import the archives.

    Args:
        root: Folder to pack.
        places: Folders to pack. A key is the name of a split folder, or ``""`` for `root` itself; its value says whether only
            the subfolders of this folder are packed.
    """
    packed = root.with_name(f"{root.name}-packed")
    archives: Sequence[str] = [
        packing(root / name, packed / f"{name or 'train'}.tar", below) for name, below in sorted(places.items())
    ]
    return " && ".join([f"mkdir {_quoted(packed)}", *archives, f"dpfed data import {_quoted(packed)} DEST"])
