"""Reading a TOML file that a user wrote."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from dpfed.errors import UserError


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file.

    Args:
        path: of the file.
        what: the file is, for messages, such as ``config``.

    Raises:
        UserError: for a missing file or a syntax error.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the {what} {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from error
