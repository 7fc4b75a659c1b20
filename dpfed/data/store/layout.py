"""The files in a record store's directory.

    store.json                 format version, name, kind, counts, label names, left-out records, sizes of the other files, and
                               the fingerprint of the records (with its secret key, if the records are private)
    index.arrow                key, split, labels and unit (if any) of every record
    records.arrow              id, image and captions of every record

This module also checks ``store.json``, because a store may be damaged or written by somebody else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpfed.data.limits import LARGEST_SIDE, SMALLEST_SIDE
from dpfed.data.store.record import SPLITS
from dpfed.errors import UserError
from dpfed.files.reading import read_bytes
from dpfed.paths import STORE_HEADER, is_store

Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Strict(BaseModel):
    """A pydantic model that converts no types: it refuses ``"no"`` for a bool, and ``1.0`` for an int."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Images(_Strict):
    encoding: Literal["raw", "encoded"]
    size: Annotated[int, Field(ge=SMALLEST_SIDE, le=LARGEST_SIDE)] | None = None
    resized: bool = False

    @model_validator(mode="after")
    def _raw_has_a_size(self) -> _Images:
        if (self.encoding == "raw") != (self.size is not None):
            raise ValueError("raw images must have a size, and encoded images must not")
        return self


class _Skipped(_Strict):
    id: str
    reason: str


class _Contents(_Strict):
    fingerprint: str
    key: str | None = None


class _Header(_Strict):
    dpfed_store: int
    name: str
    kind: Literal["image", "image-text"]
    public: bool
    records: Annotated[int, Field(ge=1, lt=2**63)]
    splits: dict[str, Count]
    images: _Images
    label_names: dict[str, list[str]]
    unit_name: str | None
    training_units: Count | None = None
    skipped: list[_Skipped]
    left_out: Count = 0
    files: dict[str, Count]
    converted: dict[str, Count] = {}
    contents: _Contents

    @model_validator(mode="after")
    def _counts_fit(self) -> _Header:
        if set(self.splits) != set(SPLITS) or sum(self.splits.values()) != self.records:
            raise ValueError("the splits do not fit the number of records")
        if (self.training_units is None) != (self.unit_name is None) or (self.training_units or 0) > self.records:
            raise ValueError("the number of training units does not fit the name of the unit or the number of records")
        if not {INDEX, RECORDS} <= self.files.keys():
            raise ValueError("the size of a file is missing")
        return self


FORMAT_VERSION = 5
HEADER, INDEX, RECORDS = STORE_HEADER, "index.arrow", "records.arrow"
MOST_SKIPPED = 10_000  # at most this many of the records that were left out are listed
_SHOWN = 80  # characters shown of the description of a header's error


@dataclass(frozen=True)
class Layout:
    """The checked header of a store.

    Attributes:
        place: Path of the store, for messages.
        header: Contents of ``store.json``.
    """

    place: str
    header: dict[str, Any]

    @property
    def splits(self) -> dict[str, int]:
        """The number of records of each split in the whole store."""
        return self.header["splits"]

    @property
    def training_units(self) -> int | None:
        """The number of units of the training records; ``None``: the store names no units."""
        return self.header.get("training_units")

    def check_sizes(self, path: Path) -> None:
        """Checks that the store's files exist and are complete.

        Args:
            path: Directory of the store.

        Raises:
            UserError: If a file is missing, or its size differs from that in the header.
        """
        for name in (INDEX, RECORDS):
            file, expected = path / name, self.header["files"][name]
            if not file.is_file():  # nothing else may be opened: a pipe would block for ever
                raise damaged(path, f"{name} is missing or not a file")
            actual = file.stat().st_size
            if actual != expected:
                raise damaged(path, f"{name} has {actual:,} bytes instead of {expected:,}")


def read_layout(path: Path) -> Layout:
    """Reads the header of a store on this machine.

    Raises:
        UserError: If there is no store, its header is damaged, or it has another format version.
    """
    if not path.exists():
        raise UserError(f"there is no record store at {path}; import one with `dpfed data import`. [store-missing]")
    if not is_store(path):
        raise UserError(f"{path} is not a record store (no {HEADER}); import it with `dpfed data import`. [store-not-one]")
    try:
        header = json.loads(read_bytes(path / HEADER))
        version = header["dpfed_store"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, f"{HEADER} cannot be read") from error
    if type(version) is int and version != FORMAT_VERSION:
        raise UserError(
            f"{path} has store format {version}, but this dpfed reads format {FORMAT_VERSION}: delete the store and import the "
            "records again. (If a run made the store, the next run makes it again.) [store-format]"
        )
    try:
        _Header.model_validate(header)
    except ValidationError as error:
        first: Any = error.errors()[0]
        what = ".".join(map(str, first["loc"])) or first["msg"]
        raise damaged(path, f"{HEADER} is incomplete or wrong ({what[:_SHOWN]})") from error
    return Layout(str(path), header)


def damaged(place: str | Path, what: str) -> UserError:
    """Returns the error for a damaged store.

    Args:
        place: Path of the store.
        what: What is wrong, in a few words.
    """
    return UserError(
        f"the record store {place} is damaged: {what}; delete the store, and import the data again. (If a run made the store, "
        "the next run makes it again.) [store-damaged]"
    )
