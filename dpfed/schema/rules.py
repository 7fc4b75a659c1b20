"""When a key of a configuration has an effect."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dpfed.config import Config


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
