"""The base of every set of keys that a user can give: a section of the configuration, or the options of a loss or a method.

Also here: when a key of a configuration has an effect.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Strict, field_validator

from dpfed.schema.wording import has_control_characters

if TYPE_CHECKING:
    from dpfed.config import Config

_DIGITS = 10**20  # a seed may have 64 bits


class Section(BaseModel):
    """Base of all sections: frozen, no key that it does not know, and no value of another type, such as true for 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @field_validator("*")
    @classmethod
    def _sensible(cls, value: Any) -> Any:
        if type(value) is int and abs(value) >= _DIGITS:
            raise ValueError("expected a whole number of fewer digits")
        for text in value if isinstance(value, tuple) else (value,):
            if text == "":
                raise ValueError("expected a text that is not empty")
            if isinstance(text, str) and has_control_characters(text):
                raise ValueError("expected no line break or other control character")
        return value


class NoOptions(Section):
    """Of a loss or a method that has no keys of its own."""


Item = TypeVar("Item")
Pair = Annotated[tuple[float, float], Strict(False)]  # TOML has lists, and no tuples
Items = Annotated[tuple[Item, ...], Strict(False)]


class Rule(NamedTuple):
    """When some keys have an effect.

    Attributes:
        keys: with spaces between them.
        because: the keys whose values decide, likewise.
        holds: whether the keys have an effect in a configuration.
        remedy: what would give them one.
    """

    keys: str
    because: str
    holds: Callable[[Config], bool]
    remedy: str


def needs(keys: str, key: str, *values: str, why: str = "") -> Rule:
    """Keys that have an effect only where another has one of a few values."""
    remedy = f"{why}set {key} = {' or '.join(map(repr, values))}"
    return Rule(keys, key, lambda c: attrgetter(key)(c) in values, remedy)
