"""What ``provenance.json`` may hold: `dpfed.runs.provenance` writes it, and of a damaged one nothing is made."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Data(_Facts):
    name: str
    fingerprint: str | None
    keyed: bool
    generated: dict[str, Any] | None


class _Public(_Facts):
    name: str
    records: int
    fingerprint: str | None


class _Environment(_Facts):
    commit: str | None
    hardware: str
    versions: dict[str, str]


class _Trained(_Facts):
    run: str | None
    data: str | None
    public: bool | None
    generated: bool
    guarantee: bool | None
    epsilon: float | None = Field(None, ge=0)
    delta: float | None = Field(None, gt=0, lt=1)
    unit: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> _Trained:
        if self.guarantee and None in (self.epsilon, self.delta, self.unit):
            raise ValueError("a guarantee has epsilon, delta and unit")
        return self


class _Start(_Facts):
    weights: str
    sha256: str
    trained: list[_Trained] | None


class _Provenance(_Facts):
    began: str
    data: _Data
    environments: list[_Environment] = Field(min_length=1)
    public: _Public | None = None
    start: _Start | None = None


def wrong_provenance(facts: object) -> str | None:
    """Where something is missing or of another kind, such as ``data.fingerprint``; ``None``: nowhere."""
    try:
        _Provenance.model_validate(facts)
    except ValidationError as error:
        return ".".join(map(str, error.errors()[0]["loc"])) or "all of it"
    return None
