"""Makes messages about wrong values that users understand. Pydantic finds the errors, but writes about classes and inputs."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from dpfed.errors import nearest

# Messages by pydantic's error type, with the limit that the error names. A test checks that no type the schemas can raise is
# missing.
_WORDS = {
    "model_type": "expected a section, that is keys with values",
    "model_attributes_type": "expected a section, that is keys with values",
    "dict_type": "expected a section, that is keys with values",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "int_type": "expected a whole number, such as 100",
    "int_parsing_size": "expected a whole number of fewer digits",
    "bool_type": "expected true or false",
    "string_type": "expected a string, in quotes",
    "string_unicode": "expected a string of valid Unicode characters",
    "string_too_short": "expected a non-empty string",
    "string_too_long": "expected a string of at most {max_length} characters",
    "string_pattern_mismatch": "expected a string that fits {pattern}",
    "tuple_type": "expected a list, such as [1, 2]",
    "too_short": "expected a list of at least {min_length} values",
    "too_long": "expected a list of at most {max_length} values",
    "literal_error": "expected {expected}",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "value_error": "{error}",
}
_LETTERS = "letters, digits, '.', '_' and '-'"
_PATTERNS = {
    "^[A-Za-z0-9_-][A-Za-z0-9._-]*$": f"expected {_LETTERS}, not beginning with '.'",
    "^[A-Za-z0-9._-]{1,64}$": f"expected {_LETTERS}, 64 of them at most",
    "^[0-9a-f]{32}$": "expected a fingerprint, 32 hexadecimal digits",
    "^[0-9a-f]{64}$": "expected a public key, 64 hexadecimal digits",
}
_LONGEST = 80  # characters of a value that a message repeats


def shown(value: Any) -> str:
    """Returns a value as in a TOML file, on one line, cut after 80 characters; sections and ``None`` are described instead."""
    text = _toml(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def either(values: Iterable[Any], joint: str = "or") -> str:
    """Returns a list in words, such as ``'a', 'b' or 'c'``."""
    *others, last = map(repr, values)
    return f"{', '.join(others)} {joint} {last}" if others else last


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return f"a section of {', '.join(map(str, value))}" if value else "an empty section"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, int):
        return str(value) if abs(value) < 10**40 else "a number of more than 40 digits"
    return repr(value)


def problem(error: ValidationError, schema: type[BaseModel] | None = None) -> str:
    """Returns the first error, such as ``'privacy.epsilon': expected a number; got true``, without a full stop.

    Args:
        error: Error that pydantic raised.
        schema: Schema that was checked; if a key is unknown, the message suggests the schema's nearest key.
    """
    first = error.errors()[0]
    place = first["loc"]
    if place[:2] == ("bounding", "options") and len(place) > 2:  # pydantic reports each member of the union
        return f"{_key(place[:3])}: expected a finite number, true, false or a string; got {shown(first['input'])}"
    if first["type"] == "extra_forbidden":
        return f"unknown key {_key(place)}{_suggestion(place, schema)}"
    if first["type"] == "missing":
        return f"{_key(place)} is missing"
    return f"{_key(place)}: {complaint(error)}" if place else complaint(error)


def complaint(error: ValidationError) -> str:
    """Returns the complaint about the first wrong value, such as ``expected a number; got true``, without its key."""
    first = error.errors()[0]
    context = {name: _limit(limit) for name, limit in first.get("ctx", {}).items()}
    words = _PATTERNS.get(str(context.get("pattern", ""))) or _WORDS.get(first["type"], first["msg"]).format(**context)
    if first["type"] == "too_short" and context["min_length"] == 1:
        words = "give at least one value"
    got = "" if first["type"] == "value_error" and isinstance(first["input"], dict) else f"; got {shown(first['input'])}"
    return f"{words[0].lower()}{words[1:]}{got}"


def _limit(limit: Any) -> Any:
    """Returns a limit as people write it: 1.0 as 1, and 1e9 as 1,000,000,000."""
    whole = isinstance(limit, float) and limit.is_integer() and abs(limit) < 1e15
    return (f"{limit:,.0f}" if abs(limit) >= 1e4 else int(limit)) if whole else limit


def _key(place: tuple[int | str, ...]) -> str:
    """Returns a key in words: ``("views", "crop_scale", 0)`` -> ``'views.crop_scale[0]'``, unprintable characters escaped."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    return f"'{text}'" if text.isprintable() else repr(text)


def _suggestion(place: tuple[int | str, ...], schema: Any) -> str:
    for part in place[:-1]:
        schema = schema.model_fields[part].annotation if hasattr(schema, "model_fields") else None
    return f" ({nearest(str(place[-1]), schema.model_fields)})" if hasattr(schema, "model_fields") else ""


def has_control_characters(text: str) -> bool:
    """Returns whether a text has a line break or another control character, which no name, path or number should have."""
    return any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text)
