"""Reading TOML that a user wrote: a file, or a value on the command line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from dpfed.errors import UserError
from dpfed.files.reading import open_regular

_MOST = 1 << 20  # bytes: what is larger, or has no end, is no file that a person wrote
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
        raise UserError(f"cannot read the {what} {path}: {error.strerror or error}.") from error
    if len(content) > _MOST:
        raise UserError(f"the {what} {path} is larger than 1 MB: expected a short TOML file.")
    try:
        return _parsed(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid TOML: it is not UTF-8 text; save it as UTF-8.") from error
    except RecursionError as error:  # of tomllib, or ours
        raise UserError(f"{path} is not valid TOML: {_DEEP}.") from error
    except ValueError as error:  # a syntax error, or a number with thousands of digits
        raise UserError(f"{path} is not valid TOML: {error}.") from error


def toml_value(text: str) -> Any:
    """The value that a text is in TOML; a text that is no TOML value stands for itself, so that quotes may be left out.

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
