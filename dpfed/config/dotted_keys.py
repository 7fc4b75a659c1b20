"""Nested dictionaries by dotted keys such as ``privacy.epsilon``: how configurations are compared and changed."""

from __future__ import annotations

import copy
from typing import Any

from dpfed.errors import UserError


def leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value by its dotted key; an empty section has none.

    Raises:
        UserError: if one is given twice, as ``"a.b" = 1`` and as ``a = { b = 2 }``.
    """
    found: dict[str, Any] = {}
    for name, value in tree.items():
        more = leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
        for key in more.keys() & found:
            raise UserError(f"'{key}' is given twice, once with dots and once in a table: leave one out.")
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
            raise UserError(f"{where}: unknown key '{key}': '{section}' is a value, not a section.")
    if value is None:
        tree.pop(last, None)
    else:
        tree[last] = copy.deepcopy(value)
