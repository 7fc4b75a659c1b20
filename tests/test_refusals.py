"""Every refusal has a code of its own, by which tests and people know it while its sentence becomes a better one."""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpfed.errors import UserError

_PRODUCT = Path(__file__).parents[1] / "dpfed"
_CODE = re.compile(r" \[([a-z0-9]+(?:-[a-z0-9]+)+)\]$")
_PASSED_ON = {"dpfed/cluster/launch.py": "refusal", "dpfed/cluster/link.py": "text"}  # of another process, with its code


def _errors() -> set[str]:
    """Names of `UserError` and of what derives from it."""
    names, parents = {"UserError"}, {}
    for path in _PRODUCT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                parents[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    while more := {name for name, bases in parents.items() if bases & names} - names:
        names |= more
    return names


def _refusals() -> Iterator[tuple[str, str]]:
    """Places, and how each message ends; of one that is not written there, the variable's name in braces."""
    errors = _errors()
    for path in sorted(_PRODUCT.rglob("*.py")):
        place = str(path.relative_to(_PRODUCT.parent))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in errors:
                end = _end(node.args[0]) if node.args else ""
                if end != f"{{{_PASSED_ON.get(place)}}}":
                    yield f"{place}:{node.lineno}", end


def _end(message: ast.expr) -> str:
    if isinstance(message, ast.JoinedStr) and message.values:
        return _end(message.values[-1])
    if isinstance(message, ast.FormattedValue):
        return _end(message.value)
    if isinstance(message, ast.Name):
        return f"{{{message.id}}}"
    if isinstance(message, ast.Constant):
        return str(message.value)
    if isinstance(message, ast.BinOp):
        return _end(message.right)
    return ""


def test_every_refusal_has_a_code() -> None:
    assert [place for place, end in _refusals() if not _CODE.search(end)] == []


def test_no_two_refusals_have_the_same_code() -> None:
    codes = collections.Counter(match[1] for _, end in _refusals() if (match := _CODE.search(end)))
    assert [code for code, count in codes.items() if count > 1] == []


@pytest.mark.parametrize("message", ["no such store. [store-missing]", "x" * 5000 + " [store-missing]"])
def test_the_code_is_kept_apart_from_the_sentence(message: str) -> None:
    error = UserError(message, public="damaged.")
    assert error.code == "store-missing" and "[" not in error.sentence
    assert error.public == "damaged. [store-missing]"
    assert str(error).endswith("[store-missing]")


def test_a_message_without_a_code_has_none() -> None:
    assert UserError("a list: [1, 2]").code == "" and UserError("[group]").sentence == "[group]"
