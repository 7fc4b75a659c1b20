"""Handles names by which a configuration refers to a user's own objects, such as ``package.module:object``."""

from __future__ import annotations

import re
from typing import Any

IN_PYTHON = "python"
"""Placeholder for a module's name: the object was passed in Python, so no import path leads to it."""

Arguments = dict[str, bool | int | float | str | list[Any]]
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_name(text: str | None) -> bool:
    """Returns whether a string has the form ``package.module:object``."""
    return text is not None and _NAME.fullmatch(text) is not None


def called(value: object) -> str:
    """Returns the name by which a configuration records an object that was passed in Python, such as ``python:MyDataset``."""
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    name = re.sub(r"\W", "", getattr(kind, "__qualname__", "object").rpartition(".")[2])
    return f"{IN_PYTHON}:{name if name.isidentifier() else 'object'}"


def in_python(text: str | None) -> bool:
    """Returns whether a name stands for an object that was passed in Python."""
    return text is not None and text.startswith(f"{IN_PYTHON}:")
