"""The base class of every set of keys that a user can give: sections of a configuration, options of a loss or a method."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Strict, field_validator

from dpfed.schema.wording import has_control_characters

_DIGITS = 10**20  # a seed may have 64 bits


class Section(BaseModel):
    """Base class of all sections, which are frozen.

    A section rejects unknown keys, values of a wrong type (such as true for 1), infinite numbers and NaN, whole numbers of
    more than 20 digits, empty strings, and strings with control characters.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @field_validator("*")
    @classmethod
    def _sensible(cls, value: Any) -> Any:
        if type(value) is int and abs(value) >= _DIGITS:
            raise ValueError("expected a whole number of fewer digits")
        for text in value if isinstance(value, tuple) else (value,):
            if text == "":
                raise ValueError("expected a non-empty string")
            if isinstance(text, str) and has_control_characters(text):
                raise ValueError("expected no line break or other control character")
        return value


class NoOptions(Section):
    """The options of a loss or a method that has no keys of its own."""


Item = TypeVar("Item")
Pair = Annotated[tuple[float, float], Strict(False)]  # TOML has lists, and no tuples
Items = Annotated[tuple[Item, ...], Strict(False)]
