"""Imports Camelyon17 (patches of histology slides from five hospitals) in the layout of the WILDS benchmark."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from dpfed.data.importers.access import Access
from dpfed.data.importers.source import FileRecord, Importer, Item, Source, not_utf8
from dpfed.errors import UserError

_TEST_CENTER, _VALIDATION_CENTER = 2, 1
_MOST_CENTERS = 1000  # there are five
_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")


class WildsImporter(Importer):
    """Importer of the folder ``camelyon17_v1.0``: ``metadata.csv`` and ``patches/``.

    The splits are those of WILDS: hospital 2 is the test split. Hospital 1 and the held-out patches of the training hospitals
    (split 1) are the validation split; the label ``center`` distinguishes them. The other 302,436 patches, of three hospitals,
    are for training.
    """

    name = "camelyon17"
    layout = "the WILDS folder camelyon17_v1.0 with metadata.csv and patches/patient_XXX_node_Y/*.png"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether the folder contains the table and the patches."""
        return (path / "metadata.csv").is_file() and (path / "patches").is_dir()

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Reads the table and streams the patches.

        Raises:
            UserError: If `path` is not laid out as expected, or cannot be read.
        """
        if not self.recognises(path):
            raise UserError(f"{path} is not Camelyon17: expected {self.layout}. [paper-not-camelyon]")
        try:
            rows = list(_rows((access or Access.to(path)).file(path / "metadata.csv")))
        except UnicodeDecodeError as error:
            raise not_utf8(path / "metadata.csv") from error
        except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
            expected = ", ".join(_COLUMNS)
            raise UserError(
                f"cannot read {path / 'metadata.csv'} ({error}); expected the columns {expected}. [paper-camelyon]"
            ) from error

        def records() -> Iterator[Item]:
            for id, split, labels in rows:
                yield FileRecord(id, path / id, (), labels, split)

        centers = max((labels["center"] for _, _, labels in rows), default=-1) + 1
        if centers > _MOST_CENTERS:
            raise UserError(f"{path / 'metadata.csv'} has a center {centers - 1}; expected 0 to 4. [paper-camelyon-center]")
        names = {"tumor": ["normal", "tumor"], "center": [str(number) for number in range(centers)]}
        return Source("image", records(), names, frozenset(split for _, split, _ in rows), len(rows))


def _rows(table: Path) -> Iterator[tuple[str, str, dict[str, int]]]:
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            node = f"patient_{row['patient']:0>3}_node_{row['node']}"
            id = f"patches/{node}/patch_{node}_x_{row['x_coord']}_y_{row['y_coord']}.png"
            yield id, _split(int(row["center"]), int(row["split"])), {key: int(row[key]) for key in ("tumor", "center")}


def _split(center: int, split: int) -> str:
    if center == _TEST_CENTER:
        return "test"
    return "validation" if center == _VALIDATION_CENTER or split == 1 else "train"
