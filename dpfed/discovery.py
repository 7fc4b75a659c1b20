"""What is found by its name: methods of bounding, what rooms add that an installation may lack, and parts of other packages.

Packages announce parts by entry points, of a group for each `Kind`: a loss is an `Objective`, a method a `Method`, an importer
a subclass of `Importer`, an encoder a function that returns a module. dpfed announces its own in ``dpfed/entry_points.txt``,
which the build copies into the package's metadata. dpfed itself reads that file, because the metadata of a checkout are as old
as its installation.

These rooms are `dpfed.baselines` (methods for comparison, BatchNorm) and `dpfed.reproduce` (the papers' experiments and data
sets). Nothing needs them, and nothing else names them.
"""

from __future__ import annotations

import configparser
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from dpfed import __version__
from dpfed.errors import UserError
from dpfed.files.source import current_folder_last, find_source
from dpfed.schema.named import in_python

Room = Literal["baselines", "reproduce"]
Kind = Literal["losses", "methods", "importers", "encoders"]
_OWN_POINTS = Path(__file__).with_name("entry_points.txt")


def has(room: str) -> bool:
    """Whether a room is installed."""
    return importlib.util.find_spec(f"dpfed.{room}") is not None


def part(room: Room, name: str) -> ModuleType:
    """A file or folder of a room that is installed, by its name."""
    return importlib.import_module(f"dpfed.{room}.{name}")


def methods() -> dict[str, str]:
    """The module of every method of bounding by the method's name; none is loaded, for most runs need one."""
    return {name: part.module for name, part in shipped("methods").items()}


@dataclass(frozen=True)
class Announced:
    """A part that a package announces by an entry point.

    Attributes:
        name: by which a configuration names it.
        package: that announces it.
        version: of the package.
        module: that holds it.
        attribute: of the module.
    """

    name: str
    package: str
    version: str
    module: str
    attribute: str

    def load(self) -> Any:
        """The part itself.

        Raises:
            UserError: if it cannot be imported.
        """
        try:
            found = importlib.import_module(self.module)
            for name in self.attribute.split("."):
                found = getattr(found, name)
        except Exception as error:
            raise UserError(
                f"the package {self.package} {self.version} announces '{self.name}' ({self.module}:{self.attribute}), which "
                f"cannot be imported: {error}. Repair the package, or uninstall it. [part-broken]"
            ) from error
        return found

    @property
    def place(self) -> str:
        """``module:attribute``, by which a configuration may name it, too."""
        return f"{self.module}:{self.attribute}"

    @property
    def said(self) -> str:
        """What it is, in words: its name, package and version, its module, and the hash of the module's file."""
        digest = file_digest(self.module) or "not known"
        return f"'{self.name}' of {self.package} {self.version} ({self.module}, SHA-256 {digest})"


def shipped(kind: Kind) -> dict[str, Announced]:
    """dpfed's own parts of a kind, by name, in the order of ``entry_points.txt``; without those of rooms that are missing."""
    points = [(name, *place.split(":")) for name, place in _own_points()[f"dpfed.{kind}"].items()]
    return {
        name: Announced(name, "dpfed", __version__, module, attribute)
        for name, module, attribute in points
        if has(module.split(".")[1])
    }


def announced(kind: Kind) -> dict[str, Announced]:
    """The parts of a kind that other packages announce, by name: entry points of ``dpfed.losses`` and so on.

    Raises:
        UserError: if two packages announce the same name.
    """
    found: dict[str, Announced] = {}
    for point in _entry_points().select(group=f"dpfed.{kind}"):
        if point.module.partition(".")[0] == "dpfed":  # see `shipped`
            continue
        package, version = (point.dist.name, point.dist.version) if point.dist else ("unknown", "unknown")
        part = Announced(point.name, package, version, point.module, point.attr)
        if found.setdefault(point.name, part) != part:
            raise UserError(
                f"the packages {found[point.name].package} and {package} both announce '{point.name}' as one of dpfed.{kind}: "
                "uninstall one of them. [part-twice]"
            )
    return found


def file_digest(module: str) -> str | None:
    """The first half of the SHA-256 of a module's file; ``None``: it has none that can be found. Nothing is imported."""
    source = find_source(module)
    origin = source.file if source else getattr(sys.modules.get(module), "__file__", None)  # compiled, or the main module
    if origin is None or not Path(origin).is_file():
        return None
    return hashlib.sha256(Path(origin).read_bytes()).hexdigest()[:16]


def named(name: str, key: str) -> Any:
    """The object that a configuration names: ``package.module:object``. Modules of the current folder are found, too.

    Args:
        name: of the object.
        key: of the configuration, for messages.

    Raises:
        UserError: if it is not there, cannot be imported, or was handed over in Python.
    """
    module, _, attribute = name.partition(":")
    if in_python(name):
        raise UserError(
            f"{key} = {name!r} was handed over in Python, and no name leads to it: run the script that began this run again, "
            "or name a function of a module of yours. [part-in-python]"
        )
    try:
        with current_folder_last():
            found = importlib.import_module(module)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0])
        why = "there is no such module here" if missing else f"{type(error).__name__}: {error}"
        raise UserError(
            f"{key} = {name!r} cannot be imported ({why}): install its package, or start in its folder. [part-import]"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UserError(f"{key} = {name!r}: the module {module} has no {part!r}. [part-missing]")
        found = getattr(found, part)
        if isinstance(found, ModuleType):  # whoever reads the name should see whose code it is
            raise UserError(
                f"{key} = {name!r} leads through {part!r} to another module: name an object of that module, as in "
                f"{found.__name__}:object. [part-module]"
            )
    return found


def call_named(name: str, key: str, options: dict[str, Any]) -> Any:
    """What a function by name returns.

    Args:
        name: of the function.
        key: of the configuration, for messages.
        options: its arguments.

    Raises:
        UserError: for a name that leads to nothing that can be called, or if it fails.
    """
    function = named(name, key)
    if not callable(function):
        raise other_part(key, name, "is a function", function)
    return _call(function, name, key, options)


def object_named(name: str, key: str, options: dict[str, Any]) -> Any:
    """An object by name that can be called; a class, and whatever has options, is called first to make it.

    Args:
        name: of the object.
        key: of the configuration, for messages.
        options: arguments of what makes it.

    Raises:
        UserError: for a name that leads to something else.
    """
    found = named(name, key)
    made = _call(found, name, key, options) if inspect.isclass(found) or options else found
    if not callable(made):
        raise other_part(key, name, "can be called", made)
    return made


def _call(function: Callable[..., Any], name: str, key: str, options: dict[str, Any]) -> Any:
    try:
        return function(**options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{key} = {name!r} failed: {type(error).__name__}: {error}. [part-fails]") from error


def other_part(key: str, name: str, expected: str, found: object) -> UserError:
    """The error for an object by name that is of another kind."""
    return UserError(f"{key} = {name!r}: expected something that {expected}, got {type(found).__name__}. [part-other]")


def said_of(value: object, name: str | None = None) -> str:
    """A part of the user's own in words: its name, package and version, and the hash of its module's file.

    Args:
        value: the object, or what made it.
        name: in the configuration; default: that of the object, or of its class.
    """
    kind = value if hasattr(value, "__qualname__") else type(value)
    module = name.partition(":")[0] if name and not in_python(name) else getattr(kind, "__module__", None) or "?"
    shown = name if name and not in_python(name) else f"{module}:{getattr(kind, '__qualname__', '?')}"
    package = package_of(module)
    return f"{shown}{f', {package}' if package else ''}, SHA-256 {file_digest(module) or 'not known'}"


def package_of(module: str) -> str | None:
    """The installed package that a module belongs to, with its version; ``None``: it belongs to none."""
    package = _packages().get(module.partition(".")[0], [None])[0]
    return f"{package} {importlib.metadata.version(package)}" if package else None


@functools.cache
def _own_points() -> configparser.ConfigParser:
    points = configparser.ConfigParser(delimiters=("=",))
    points.read_string(_OWN_POINTS.read_text(encoding="utf-8"))
    return points


@functools.cache
def _entry_points() -> Any:  # Python 3.11 and 3.12 have two types for it
    return importlib.metadata.entry_points()  # reads a file of every installed package


@functools.cache
def _packages() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())
