"""Imports tables of image files and captions: CSV and TSV as open_clip reads them, JSON, and captions of COCO and Flickr."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpfed.data.importers.access import Access
from dpfed.data.importers.classes import class_of, number_classes, without_class
from dpfed.data.importers.folder import captions_advice, table_command
from dpfed.data.importers.listing import Listing, list_files, suffix
from dpfed.data.importers.persons import persons_of
from dpfed.data.importers.source import (
    FILES,
    OTHER_FILES,
    SPLIT_NAMES,
    FileRecord,
    Importer,
    Item,
    Source,
    Unreadable,
    captions_in,
    known_columns,
    spaced,
    unit_column,
    unit_of,
)
from dpfed.data.importers.splits import merged, split_of
from dpfed.data.importers.table_rows import (
    TABLES,
    Cells,
    holds_entries,
    is_captions,
    is_text_table,
    names_files,
    read_table,
    tables_of,
)
from dpfed.data.importers.table_splits import Row, split_by_folders
from dpfed.data.store.record import SPLITS
from dpfed.errors import UserError, nearest

# The first name is open_clip's, and it wins. The other names are what people write instead. The same holds for `FILES`.
_TITLES = ("title", "caption", "captions", "text", "sentence", "sentences", "description", "alt_text", "alt")
_OTHER_TITLES = ("comment",)


@dataclass(frozen=True)
class _Columns:
    file: str
    title: str | None
    split: str | None
    label: str | None
    unit: str | None
    unit_name: str | None
    unused: tuple[str, ...]


@dataclass
class _Tables:
    """The contents of all tables of a data set.

    Attributes:
        rows: Row of each image file; the key is the file's path, relative to the folder of all tables, or absolute.
        columns: Roles of the columns of each table.
        nameless: Rows that name no file.
        classes: Number of rows of each class, as the tables write the class.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    columns: list[_Columns] = field(default_factory=list)
    nameless: list[Unreadable] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)


class TableImporter(Importer):
    """Imports one or several tables with the columns ``filepath`` and optionally ``title``, ``split``, ``label`` and ``unit``.

    Rows with the same file are the captions of one record. The paths in a table are relative to the table's folder, or
    absolute. The id of a record is the path of its image, relative to the folder that is imported or, if tables are imported,
    to the deepest folder that holds all of them. The id is absolute if the table gives an absolute path and the image lies
    outside of that folder.

    If no column names units, persons in the paths are the units (`dpfed.data.importers.persons`). Other usual names of columns,
    such as ``Image Path`` and ``caption``, are understood if only one column can be meant. A folder is one data set if it holds
    one table, tables that are named after splits (``train.tsv``, ``val.tsv``, ``test.tsv``), or tables with the names that
    Hugging Face, COCO and Flickr use. `dpfed.data.importers.table_rows` says which forms a table may have.
    """

    name = "table"
    options = ("splits",)
    layout = (
        "a .csv, .tsv or .jsonl table with the columns filepath and title (optional: split, label, unit), or a folder with "
        "one such table, with tables named train, val or test, with metadata.csv or metadata.jsonl, or with COCO's or "
        "Flickr's captions"
    )

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether `path` is a table, or a folder with one table, a table for each split, or tables of known names.

        A folder's single table whose name does not tell what it holds counts only if it has a column of image files, and at
        least half as many rows as there are images in the folder.
        """
        if not path.is_dir():
            named = suffix(path) in TABLES or is_captions(path) or holds_entries(path)
            return path.is_file() and (named or is_text_table(path, access or Access.to(path)))
        access = access or Access.to(path)
        tables, known = tables_of(path, access)
        if not known and len(tables) == 1 and split_of(Path(tables[0].name)) is None:
            return _describes(tables[0], path, access)
        named = known or all(split_of(Path(table.name)) and names_files(table, access) for table in tables)
        return bool(tables) and named

    def open(self, path: Path, access: Access | None = None, splits: int | None = None) -> Source:
        """Reads the table or tables. Images are read later, when the records are stored.

        Args:
            path: Table, or folder of tables.
            access: Paths that the import may read.
            splits: Whether folders in the images' paths can be splits. 0: no folder is a split; ``None``: their names decide.

        Raises:
            UserError: If there are no tables, it is not clear which tables are meant, a table lies in COCO's folder
                ``annotations``, or `open_tables` refuses the tables.
        """
        access = access or Access.to(path)
        if not path.is_dir():
            if path.parent.name == "annotations" and is_captions(path):
                raise UserError(f"images of {path} lie outside its folder: import {path.parent.parent}. [table-in-annotations]")
            return self.open_tables([path], access, splits=splits)
        tables, known = tables_of(path, access)
        if not tables:
            raise UserError(f"there are no tables in {path}; expected {self.layout}. [table-none-there]")
        unnamed = [table for table in tables if not known and split_of(Path(table.name)) is None]
        if unnamed and len(tables) > 1:
            each = table_command(path, unnamed if len(unnamed) < len(tables) else tables)
            raise UserError(
                f"{path} holds the table {unnamed[0].name}, whose name contains no split; name it after train, val or test, "
                f"move it away, or import what you mean: `{each}`. [table-name-no-split]"
            )
        training_first = sorted(tables, key=lambda table: SPLITS.index(split_of(table.relative_to(path)) or "train"))
        return self.open_tables(training_first, access, list_files(path, access), splits)

    def open_tables(
        self, paths: Sequence[Path], access: Access, listing: Listing | None = None, splits: int | None = None
    ) -> Source:
        """Reads the tables of one data set. Images are read later, when the records are stored.

        The split of a row comes from the first of these that names one: the name or folder of the row's table, if there are
        several tables or a folder is imported; the row's cell in the column ``split``; the folders in the path of the row's
        image. If none of them names a split, the row is for training.

        Args:
            paths: Paths of the tables.
            access: Paths that the import may read.
            listing: Contents of the folder, if a folder is imported.
            splits: Whether folders in the images' paths can be splits. 0: no folder is a split; ``None``: their names decide.

        Raises:
            UserError: If a table cannot be read, tables or rows disagree, it is not clear which columns, images or splits are
                meant, a folder holds images and its tables name none of them, or `splits` is a number other than 0.
        """
        root = listing.root if listing else common_folder(paths)
        tables = _Tables()
        named: list[tuple[str, str]] = []
        for path in paths:
            split = split_of(path.relative_to(root)) if len(paths) > 1 or listing else None
            named += [(split, path.name)] if split and split_of(Path(path.name)) else []
            _read(path, root, split, tables, access, self.layout)
        _refuse_columns_that_differ(paths, tables.columns, root)
        missing = _find_bare_names(tables, root, access)
        folders = split_by_folders(tables.rows, missing, [listing.root] if listing else paths, splits)
        unit_name, notice = tables.columns[0].unit_name, ""
        if unit_name is None:
            persons = persons_of([Path(id) for id in tables.rows])
            unit_name, notice = persons.unit_name, persons.notice
            for row, person in zip(tables.rows.values(), persons.units, strict=True):
                row.unit = person
        numbers, names = number_classes(tables.classes)

        def records() -> Iterator[Item]:
            yield from tables.nameless
            for id, row in tables.rows.items():
                labels = {"label": numbers[row.label]} if row.label is not None else {}
                yield FileRecord(id, row.file, tuple(row.titles), labels, row.split, row.unit)

        unread, passed_over = _beside(listing, paths, tables) if listing else ([], {})
        return Source(
            kind="image-text" if tables.columns[0].title else "image",
            records=records(),
            label_names={"label": names} if names else {},
            splits=frozenset(row.split for row in tables.rows.values()),
            total=len(tables.rows) + len(tables.nameless),
            unit_name=unit_name,
            unused=tuple(dict.fromkeys(name for columns in tables.columns for name in columns.unused)),
            unread=unread,
            passed_over=passed_over,
            notice=spaced(without_class("label", tables.classes), merged(named, "files"), folders, notice),
        )


def _describes(table: Path, folder: Path, access: Access) -> bool:
    """Returns whether a table has a column of image files, and at least half as many rows as there are images in the folder.

    The result is ``False`` if there are no images, or the table cannot be read.

    Args:
        table: Path of the table, whose name does not tell what it holds.
        folder: Folder of the images.
        access: Paths that the import may read.
    """
    images = list_files(folder, access).images()
    if not images or not names_files(table, access):
        return False
    try:
        return 2 * sum(1 for _ in read_table(table, access, "")[1]) >= len(images)
    except UserError:
        return False


def _refuse_columns_that_differ(paths: Sequence[Path], columns: Sequence[_Columns], root: Path) -> None:
    """Refuses tables of which only some have captions or units, or which name different kinds of units.

    Raises:
        UserError: If it refuses the tables.
    """
    if len({(of_one.title is None, of_one.unit_name is None) for of_one in columns}) > 1:
        raise UserError(
            f"some tables of {root} lack the column of captions or of units that other tables have; add this column. "
            "[table-columns-differ]"
        )
    kinds: dict[str | None, str] = {}
    for path, of_one in zip(paths, columns, strict=True):
        kinds.setdefault(of_one.unit_name, f"{of_one.unit} in {path.name}")
    if len(kinds) > 1:
        raise UserError(
            f"the tables of {root} name units of different kinds ({', '.join(kinds.values())}): give the column of the units "
            "one name in all tables. [table-units-differ]"
        )


def common_folder(paths: Sequence[Path]) -> Path:
    """Returns the deepest folder that holds all given tables, directly or in folders below it."""
    return Path(os.path.commonpath([path.parent for path in paths]))


def _beside(listing: Listing, paths: Sequence[Path], tables: _Tables) -> tuple[list[Unreadable], dict[str, int]]:
    """Divides the files beside tables into lost files and files that are passed over, such as images that no table names.

    Args:
        listing: Contents of the folder that is imported.
        paths: Paths of the tables.
        tables: Contents of the tables.

    Returns:
        The files that would be lost, and the number of files of each kind that are passed over.

    Raises:
        UserError: If the folder holds images, and the tables name none of them.
    """
    root = listing.root
    named = {row.file for row in tables.rows.values()}
    images = set(listing.images())
    if images and not any(file in images or file.exists() for file in named):
        raise UserError(
            f"{root} holds images, but no row of {', '.join(path.name for path in paths)} names one of them. Paths in a table "
            f"are relative to the table's folder, and lead to files such as {root / next(iter(tables.rows), 'images/1.jpg')}: "
            f"correct the paths, or choose what to import. {captions_advice(listing)} [table-names-no-image]"
        )
    kin = {path.parent: suffix(path) for path in paths if is_captions(path)}
    others = {
        file for file in listing.files if suffix(file) in {kin.get(file.parent), ".txt" if kin.get(file.parent) else None}
    }
    note = {
        "images that no table names": sum(file not in named for file in images),
        "other annotations": len(others - set(paths)),
    }
    passed_over = {**listing.passed_over, **{what: count for what, count in note.items() if count}}
    return listing.others({*paths, *named, *images, *others}), passed_over


def _read(path: Path, root: Path, split: str | None, tables: _Tables, access: Access, layout: str) -> None:
    """Reads a table, and adds its rows to the contents of all tables.

    Args:
        path: Path of the table.
        root: Folder of all tables.
        split: Split of all rows of this table; ``None``: a column, or the folders in the rows' paths, give it.
        tables: Contents of all tables, to which this function adds.
        access: Paths that the import may read.
        layout: Expected layout, for messages.

    Raises:
        UserError: If the table cannot be read, its columns are not clear, or a row is wrong or disagrees with another row.
    """
    names, rows = read_table(path, access, layout)
    columns = _columns(names, path)
    tables.columns.append(columns)
    for line, cells in rows:
        if given := _cell(cells, columns.file):
            _add(tables, _normal(given, path.parent, root), cells, columns, (path, line, root), split)
        else:
            tables.nameless.append(Unreadable(f"{path.name}:{line}", f"no {columns.file}"))


def _columns(names: Sequence[str], path: Path) -> _Columns:
    if not any(names):
        raise UserError(f"the table {path} is empty; it needs a column filepath (optional: title). [table-empty]")
    file = _choose(names, FILES, path) or _choose(names, OTHER_FILES, path)
    title = _choose(names, _TITLES, path) or _choose(names, _OTHER_TITLES, path)
    if file is None:
        raise UserError(
            f"the table {path} has no column of image files, only {', '.join(names)}; add one, or call yours {FILES[0]} "
            f"(optional: title, split, label, unit). [table-no-file-column]"
        )
    split, label = (next(iter(known_columns(names, [known])), None) for known in ("split", "label"))
    unit, unit_name = unit_column(names)
    used = (file, title, split, label, unit)
    if twice := next((name for name, count in Counter(names).items() if count > 1 and name in used), None):
        places = " and ".join(str(place) for place, name in enumerate(names, start=1) if name == twice)
        raise UserError(f"the columns {places} of {path}:1 are all named {twice!r}: rename all but one. [table-twice]")
    unused = tuple(dict.fromkeys(name for name in names if name and name not in used))
    return _Columns(file, title, split, label, unit, unit_name, unused)


def _choose(names: Sequence[str], known: tuple[str, ...], path: Path) -> str | None:
    columns = list(dict.fromkeys(known_columns(names, known)))
    if len(columns) > 1 and len(known_columns(names, known[:1])) != 1:
        raise UserError(
            f"{path} has the columns {' and '.join(columns)}; rename the right one to {known[0]!r}. [table-unclear]"
        )
    return next(iter(columns), None)


def _cell(cells: Cells, column: str | None) -> str:
    cell = cells.get(column, "") if column else ""
    return cell.strip() if isinstance(cell, str) else ""


def _titles(cells: Cells, column: str | None) -> list[str]:
    cell = cells.get(column, "") if column else ""
    texts = captions_in(cell.strip()) if isinstance(cell, str) else cell
    return [text.strip() for text in texts if text.strip()]


def _add(
    tables: _Tables, id: str, cells: Cells, columns: _Columns, place: tuple[Path, int, Path], of_table: str | None
) -> None:
    table, line, root = place
    where = f"{table}:{line}"
    given = _cell(cells, columns.split).lower() or of_table or "train"
    if given not in SPLIT_NAMES:
        raise UserError(f"{where}: unknown split {given!r}; {nearest(given, SPLIT_NAMES)} [table-split-unknown]")
    split = SPLIT_NAMES[given]
    if of_table is not None and split != of_table:
        raise UserError(
            f"{where}: {columns.split} says {split}, the table's path says {of_table}; correct one of them. [table-conflict]"
        )
    written = _cell(cells, columns.label)
    tables.classes[written] += 1
    if isinstance(cells.get(columns.label or ""), list):
        raise UserError(
            f"{where}: the class in column {columns.label} is a list, expected one number or text: write one class, or give "
            "the column another name, so that it is not read. [table-label]"
        )
    label, unit = class_of(written), unit_of(_cell(cells, columns.unit))
    row = tables.rows.setdefault(id, Row(table, line, root / id, split, label, unit))
    if (row.split, row.label, row.unit) != (split, label, unit):
        what = f"split, label or {columns.unit}" if columns.unit else "split or label"
        raise UserError(
            f"{where}: {id} has a different {what} in {row.table.name}:{row.line}; correct one of them. [table-disagrees]"
        )
    row.says_split |= of_table is not None or bool(_cell(cells, columns.split))
    row.titles.extend(_titles(cells, columns.title))


def _normal(given: str, folder: Path, root: Path) -> str:
    """Returns a file's path in one spelling: relative to `root`, or absolute if it is given so and lies outside of `root`.

    Args:
        given: Path as the table gives it.
        folder: Folder of the table, to which `given` is relative.
        root: Folder of all tables.
    """
    if root == folder and not os.path.isabs(given):
        return posixpath.normpath(given)
    path = posixpath.normpath(posixpath.join(folder.absolute().as_posix(), given))
    top = root.absolute().as_posix()
    if os.path.isabs(given) and not Path(path).is_relative_to(top):
        return posixpath.normpath(given)
    return posixpath.relpath(path, top)


def _find_bare_names(tables: _Tables, root: Path, access: Access) -> set[str]:
    """Finds images of which a table gives only the file name although they lie in other folders. Their paths become their ids.

    Args:
        tables: Contents of all tables, which this function corrects.
        root: Folder of all tables.
        access: Paths that the import may read.

    Returns:
        The names that no image has.

    Raises:
        UserError: If several images have such a name, or another row gives the image's path.
    """
    bare = {id: row for id, row in tables.rows.items() if row.file.parent == row.table.parent and not os.path.lexists(row.file)}
    if not bare:
        return set()
    missing: set[str] = set()
    by_name: dict[str, list[Path]] = {}
    for image in list_files(root, access).images():
        by_name.setdefault(image.name, []).append(image)
    for id, row in bare.items():
        scope = root if is_captions(row.table) else row.table.parent
        matches = [file for file in by_name.get(row.file.name, []) if file.is_relative_to(scope)]
        if len(matches) > 1:
            shown = " and ".join(file.relative_to(root).as_posix() for file in matches[:2])
            raise UserError(
                f"{row.table}:{row.line}: several images below {root} are named {row.file.name}, such as {shown}: write the "
                "path of the right one, relative to the table's folder. [table-file-unclear]"
            )
        if not matches:
            missing.add(id)
        else:
            row.file = matches[0]
            del tables.rows[id]
            id = matches[0].relative_to(root).as_posix()
            if id in tables.rows:
                raise UserError(
                    f"{row.table}:{row.line}: {row.file.name} is the image {id}, which another row names, too: write the "
                    "image's path, relative to the table's folder, in both rows. [table-file-twice]"
                )
            tables.rows[id] = row
    return missing
