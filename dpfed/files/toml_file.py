"""Reads TOML that a user wrote: a file, or a value on the command line.

The module also reads and changes nested dictionaries by dotted keys such as ``privacy.epsilon``.
"""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

from dpfed.errors import UserError
from dpfed.files.reading import open_regular

_MOST = 1 << 20  # bytes: nobody writes a larger file by hand
_DEEP = "tables or arrays are nested too deeply"
_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?m)(?:^|[\[{{,])[ \t]*(?:{_PART}[ \t]*\.[ \t]*){{32}}")  # tomllib takes hours for such keys


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Returns the content of a TOML file. A byte order mark, which some editors write, is skipped.

    Args:
        path: Path of the file.
        what: Kind of the file, for messages, such as ``config``.

    Raises:
        UserError: If the file is missing, cannot be read, is larger than 1 MiB, is not UTF-8, or is not valid TOML.
    """
    try:
        with open_regular(path) as file:
            content = file.read(_MOST + 1)
    except OSError as error:
        raise UserError(f"cannot read the {what} {path}: {error.strerror or error}. [toml-unreadable]") from error
    if len(content) > _MOST:
        raise UserError(f"the {what} {path} is larger than 1 MB: expected a short TOML file. [toml-too-large]")
    try:
        return _parsed(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid TOML: it is not UTF-8 text; save it as UTF-8. [toml-not-utf8]") from error
    except RecursionError as error:  # raised by tomllib, or by `_parsed`
        raise UserError(f"{path} is not valid TOML: {_DEEP}. [toml-too-deep]") from error
    except ValueError as error:  # a syntax error, or a number with thousands of digits
        raise UserError(f"{path} is not valid TOML: {error}. [toml-syntax]") from error


def toml_value(text: str) -> Any:
    """Returns the TOML value of a text. If the text is not a TOML value, it is returned as a string: quotes may be left out.

    The text must be exactly one value. If anything follows the value, such as a comment, a second line or a table, the whole
    text is returned as a string: no part of it is dropped silently.

    Args:
        text: One line, such as ``0.5`` or ``[1, 2]``.
    """
    try:
        alone = _parsed(f"value = {text}")
        listed = _parsed(f"value = [{text}]")  # a comment would swallow the bracket
    except (ValueError, RecursionError):
        return text
    return alone["value"] if alone.keys() == {"value"} and len(listed["value"]) == 1 else text


def _parsed(text: str) -> dict[str, Any]:
    if _LONG_KEY.search(text):
        raise RecursionError("a key of more than 32 parts")
    return tomllib.loads(text)


def leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns every value of nested dictionaries by its dotted key; an empty section has no values.

    Raises:
        UserError: If a key is given twice, as ``"a.b" = 1`` and as ``a = { b = 2 }``.
    """
    values: dict[str, Any] = {}
    for name, value in tree.items():
        more = leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
        for key in more.keys() & values:
            raise UserError(f"'{key}' is given twice, once with dots and once in a table: leave one out. [toml-key-twice]")
        values |= more
    return values


def put(tree: dict[str, Any], key: str, value: Any, where: str = "configuration") -> None:
    """Sets a value or a whole section in nested dictionaries, and makes missing sections above it; ``None`` removes the key.

    Args:
        tree: Nested dictionaries, which are changed.
        key: Dotted key, such as ``privacy.epsilon``.
        value: Value, which is copied; ``None``: the key is removed.
        where: Origin of the key, such as a file, for the error.

    Raises:
        UserError: If a part of the key names a value and not a section.
    """
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise UserError(f"{where}: unknown key '{key}': '{section}' is a value, not a section. [setting-in-value]")
    if value is None:
        tree.pop(last, None)
    else:
        tree[last] = copy.deepcopy(value)
