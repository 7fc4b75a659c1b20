"""Reading TOML that a user wrote: a file, or a value on the command line.

Also here: nested dictionaries by dotted keys such as ``privacy.epsilon``: how configurations are compared and changed.
"""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

from dpfed.errors import UserError
from dpfed.files.reading import open_regular

_MOST = 1 << 20  # bytes: nobody writes a larger one by hand
_DEEP = "tables or arrays are nested too deeply"
_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?m)(?:^|[\[{{,])[ \t]*(?:{_PART}[ \t]*\.[ \t]*){{32}}")  # tomllib takes hours for some


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file; a byte order mark, as some editors write it, is passed over.

    Args:
        path: of the file.
        what: the file is, for messages, such as ``config``.

    Raises:
        UserError: for a missing or much too large file, or a syntax error.
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
    except RecursionError as error:  # of tomllib, or ours
        raise UserError(f"{path} is not valid TOML: {_DEEP}. [toml-too-deep]") from error
    except ValueError as error:  # a syntax error, or a number with thousands of digits
        raise UserError(f"{path} is not valid TOML: {error}. [toml-syntax]") from error


def toml_value(text: str) -> Any:
    """The value that a text is in TOML; a text that is not a TOML value stands for itself, so that quotes may be left out.

    Only one whole value counts: nothing behind it, such as a comment, a second line or a further table, is dropped in silence.

    Args:
        text: one line.
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
    """Every value by its dotted key; an empty section has none.

    Raises:
        UserError: if one is given twice, as ``"a.b" = 1`` and as ``a = { b = 2 }``.
    """
    found: dict[str, Any] = {}
    for name, value in tree.items():
        more = leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
        for key in more.keys() & found:
            raise UserError(f"'{key}' is given twice, once with dots and once in a table: leave one out. [toml-key-twice]")
        found |= more
    return found


def put(tree: dict[str, Any], key: str, value: Any, where: str = "configuration") -> None:
    """Sets a value, or a whole section, making the sections above it; ``None`` takes it out.

    Args:
        tree: to be changed.
        key: such as ``privacy.epsilon``.
        value: is copied.
        where: the key was given, for the error.

    Raises:
        UserError: if something above the key is a value.
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
