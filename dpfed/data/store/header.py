"""What ``store.json`` says, checked: a store may have been damaged, or made by somebody else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpfed.data.limits import LARGEST_SIDE, MOST_VOLUMES, SMALLEST_SIDE
from dpfed.data.store.record import SPLITS

Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Strict(BaseModel):
    """No guesses: ``"no"`` is not false, and ``1.0`` is not 1."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Images(_Strict):
    encoding: Literal["raw", "encoded"]
    size: Annotated[int, Field(ge=SMALLEST_SIDE, le=LARGEST_SIDE)] | None = None
    resized: bool = False

    @model_validator(mode="after")
    def _raw_has_a_size(self) -> _Images:
        if (self.encoding == "raw") != (self.size is not None):
            raise ValueError("raw images have a size, and no others")
        return self


class _Skipped(_Strict):
    id: str
    reason: str


class _Sharding(_Strict):
    by: Literal["record", "unit"]
    records: Annotated[list[Count], Field(min_length=1)]
    units: list[Count] | None = None

    @model_validator(mode="after")
    def _units_are_counted_for_every_shard(self) -> _Sharding:
        if (len(self.units or []) if self.by == "unit" else self.units) not in (None, len(self.records)):
            raise ValueError("shards of units have as many counts of units")
        return self


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
    sharding: _Sharding | None = None
    volumes: Annotated[int, Field(ge=1, le=MOST_VOLUMES)] = 1
    contents: _Contents

    @model_validator(mode="after")
    def _counts_fit(self) -> _Header:
        if set(self.splits) != set(SPLITS) or sum(self.splits.values()) != self.records:
            raise ValueError("other records in the splits than in the store")
        if (self.training_units is None) != (self.unit_name is None) or (self.training_units or 0) > self.records:
            raise ValueError("units of the training records that cannot be")
        return self

    @model_validator(mode="after")
    def _shards_fit(self) -> _Header:
        if self.sharding is not None:
            if self.sharding.by == "unit" and self.unit_name is None:
                raise ValueError("shards of units in a store without units")
            if sum(self.sharding.records) > self.records:
                raise ValueError("more records in the shards than in the store")
        return self


def fault_of(header: object) -> str | None:
    """What is wrong with a header, in a few words; ``None``: nothing.

    Args:
        header: what ``store.json`` holds, parsed.
    """
    try:
        _Header.model_validate(header)
    except ValidationError as error:
        first: Any = error.errors()[0]
        return ".".join(map(str, first["loc"])) or first["msg"]
    return None
