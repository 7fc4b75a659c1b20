"""Parts of the user's own in a configuration: ``package.module:object``, and the arguments of what is called."""

from __future__ import annotations

import re
from typing import Any

IN_PYTHON = "python"
"""Stands in the place of a module: the object was handed over in Python, and no name leads to it."""

Arguments = dict[str, bool | int | float | str | list[Any]]
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_name(text: str | None) -> bool:
    """Whether a text names an object of a module."""
    return text is not None and _NAME.fullmatch(text) is not None


def called(value: object) -> str:
    """What stands in a configuration for an object that was handed over in Python."""
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    name = re.sub(r"\W", "", getattr(kind, "__qualname__", "object").rpartition(".")[2])
    return f"{IN_PYTHON}:{name if name.isidentifier() else 'object'}"


def in_python(text: str | None) -> bool:
    """Whether a name stands for an object that was handed over in Python."""
    return text is not None and text.startswith(f"{IN_PYTHON}:")
