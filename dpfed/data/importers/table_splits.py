"""Finds the splits of a table's rows from the folders in the paths of their images."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpfed.data.importers.splits import merged, spoken_part
from dpfed.errors import UserError


@dataclass
class Row:
    """The rows, of one table or several, that describe one image file.

    Attributes:
        table: Path of the table of the first row.
        line: Line of the first row.
        file: Path of the image.
        split: Split of the record.
        label: Class; ``None``: the record has no class.
        unit: Name of the unit; ``None``: the rows do not name one.
        titles: Captions.
        says_split: Whether the name or folder of a table, or a cell in the column ``split``, says the split.
    """

    table: Path
    line: int
    file: Path
    split: str
    label: str | None
    unit: str | None
    titles: list[str] = field(default_factory=list)
    says_split: bool = False


def split_by_folders(rows: dict[str, Row], missing: Collection[str], sources: Sequence[Path], level: int | None) -> str:
    """Finds the splits of rows whose table and columns say no split: reads them from the folders in the paths of the images.

    Args:
        rows: Row of each image; the key is the image's path. This function sets the splits.
        missing: Keys of rows whose images do not exist; these rows do not count.
        sources: Paths that are imported, for messages.
        level: 0: no folder is a split, and these rows are for training; ``None``: the folders' names decide.

    Returns:
        A sentence that names folders that count as splits, perhaps wrongly, such as ``train_extra``; empty: there are none.

    Raises:
        UserError: If some of these rows lie in folders named after a split, and others do not; if the folders name splits, and
            no row at all is for training; or if `level` is neither 0 nor ``None``.
    """
    if level is not None:
        if type(level) is not int or level != 0:
            raise UserError(
                f"for tables, --splits takes only 0 (no folder is a split), not {level!r}: give 0, leave it out, or write the "
                "splits into a column split of the table. [table-splits-level]"
            )
        return ""
    ids = [id for id, row in rows.items() if not row.says_split and id not in missing]
    outside = [id for id in ids if os.path.isabs(id)]
    top = len(os.path.commonpath(outside)) if outside else 0
    parts = {id: spoken_part(Path(id[top:] if os.path.isabs(id) else id).parent) for id in ids}
    splits = {id: part and part[0] for id, part in parts.items()}
    spoken = set(splits.values())
    if spoken <= {None} or spoken == {"train"}:
        return ""
    if None in spoken:
        silent, said = (next(id for id, split in splits.items() if (split is None) == none) for none in (True, False))
        raise UserError(
            f"{rows[said].table}: {said} lies in a folder named after a split, but {silent} does not: add a column split, with "
            "train, validation or test in every row. [table-split-unsaid]"
        )
    for id, split in splits.items():
        rows[id].split = split or "train"
    named = set(filter(None, parts.values()))
    if all(row.split != "train" for id, row in rows.items() if id not in missing):
        given = " ".join(shlex.quote(str(source)) for source in sources)
        raise UserError(
            f"{', '.join(map(str, sources))}: there are no images for training, only images in "
            f"{', '.join(sorted({folder for _, folder in named}))}. If these are for training, "
            f"`dpfed data import {given} DEST --format table --splits 0` counts no folder as a split. Otherwise, add rows of "
            "images for training. [table-no-training]"
        )
    return merged(named, "folders")
