"""Every parameter, every attribute and every name of the package that a docstring mentions is there, under that name."""

import ast
import re
from pathlib import Path

import pytest

import dpfed

ROOT = Path(__file__).parents[2] / "dpfed"
FILES = {file.relative_to(ROOT).as_posix(): file for file in sorted(ROOT.rglob("*.py"))}
_NAME = re.compile(r"^    \*{0,2}(\w+):", re.MULTILINE)


def described(node, section):
    """The names that a docstring's section gives a meaning, such as ``Args``."""
    match = re.search(rf"^{section}:\n((?:    .*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
    return set(_NAME.findall(match.group(1))) if match else set()


def parameters(function):
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return {one.arg for one in named}


def members(node):
    """The names that a class defines: in its body, and as attributes of `self`."""
    names = {target.id for one in node.body if isinstance(one, ast.Assign) for target in one.targets if hasattr(target, "id")}
    names |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
    names |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    stored = (one for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
    return names | {one.attr for one in stored if isinstance(one.value, ast.Name) and one.value.id == "self"}


def unknown(tree):
    """What docstrings of a module describe and is not there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (f"{node.name}: {name}" for name in described(node, "Args") - parameters(node))
        if isinstance(node, ast.ClassDef):
            made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__")]
            taken = set().union(*map(parameters, made)) if made else members(node)
            yield from (f"{node.name}: {name}" for name in described(node, "Args") - taken)
            yield from (f"{node.name}: {name}" for name in described(node, "Attributes") - members(node))


def is_there(dotted):
    """Whether a name such as ``dpfed.privacy.plan.PrivacyPlan`` is that of a room, a file, or something in a file."""
    parts, place = dotted.split(".")[1:], ROOT
    while parts and ((place / parts[0]).is_dir() or (place / f"{parts[0]}.py").is_file()):
        place /= parts.pop(0)
    if not parts or (place == ROOT and parts[0] in dpfed.__all__):
        return True
    tree = ast.parse((place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text(encoding="utf-8"))
    imported = {alias.name for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) for alias in one.names}
    classes = {one.name: members(one) for one in tree.body if isinstance(one, ast.ClassDef)}
    known = classes.get(parts[0], set(parts[1:]))
    return parts[0] in members(tree) | imported | classes.keys() and known.issuperset(parts[1:])


@pytest.mark.parametrize("name", FILES)
def test_what_docstrings_describe_is_there(name):
    assert not list(unknown(ast.parse(FILES[name].read_text(encoding="utf-8"))))


ENTRY_POINTS = {"dpfed.losses", "dpfed.importers"}  # groups, as packaging calls them, and no modules


@pytest.mark.parametrize("name", FILES)
def test_names_of_the_package_lead_somewhere(name):
    named = re.findall(r"`(dpfed(?:\.\w+)+)`", FILES[name].read_text(encoding="utf-8"))
    assert not [one for one in named if not is_there(one) and one not in ENTRY_POINTS]


def test_a_parameter_that_is_gone_is_found():
    said = '"""\n    Words.\n\n    Args:\n        kept: of it.\n            more: no name.\n        gone: too.\n    """'
    assert list(unknown(ast.parse(f"def one(kept):\n    {said}\n"))) == ["one: gone"]
    assert list(unknown(ast.parse(f"class One:\n    {said}\n    kept: int\n"))) == ["One: gone"]
