"""Finds parts by name: dpfed's own parts, optional subpackages, parts of other packages, and objects of the user.

Packages announce parts by entry points, in one group for each `Kind`: a loss is an `Objective`, a method a `Method`, an
importer a subclass of `Importer`, and an encoder a function that returns a module. dpfed lists its own parts in
``dpfed/entry_points.txt``, which the build copies into the package's metadata. dpfed itself reads that file, and not the
metadata, because the metadata of a checkout are as old as its installation.

The optional subpackages, which this module calls rooms, are `dpfed.baselines` (methods for comparison, BatchNorm) and
`dpfed.reproduce` (the papers' experiments and data sets). The other packages work without them.
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
    """Returns whether a subpackage of dpfed, such as ``baselines``, is installed."""
    return importlib.util.find_spec(f"dpfed.{room}") is not None


def part(room: Room, name: str) -> ModuleType:
    """Imports a module of an installed optional subpackage.

    Args:
        room: Name of the optional subpackage.
        name: Name of the module in it.
    """
    return importlib.import_module(f"dpfed.{room}.{name}")


def methods() -> dict[str, str]:
    """Returns, for each of dpfed's own bounding methods, the name of its module; imports no module."""
    return {name: part.module for name, part in shipped("methods").items()}


@dataclass(frozen=True)
class Announced:
    """A part that a package announces by an entry point.

    Attributes:
        name: Name of the part in a configuration.
        package: Name of the package that announces the part.
        version: Version of the package.
        module: Full name of the module that contains the part.
        attribute: Attribute of the module, dotted if it is nested.
    """

    name: str
    package: str
    version: str
    module: str
    attribute: str

    def load(self) -> Any:
        """Imports the part and returns it.

        Raises:
            UserError: If the part cannot be imported.
        """
        try:
            value = importlib.import_module(self.module)
            for name in self.attribute.split("."):
                value = getattr(value, name)
        except Exception as error:
            raise UserError(
                f"the package {self.package} {self.version} announces '{self.name}' ({self.module}:{self.attribute}), which "
                f"cannot be imported: {error}. Repair the package, or uninstall it. [part-broken]"
            ) from error
        return value

    @property
    def place(self) -> str:
        """The import path ``module:attribute``, by which a configuration may also name the part."""
        return f"{self.module}:{self.attribute}"

    @property
    def said(self) -> str:
        """A description: name, package, version and module of the part, and the hash of the module's file."""
        digest = file_digest(self.module) or "not known"
        return f"'{self.name}' of {self.package} {self.version} ({self.module}, SHA-256 {digest})"


def shipped(kind: Kind) -> dict[str, Announced]:
    """Returns dpfed's own parts of a kind, by name, in the order of ``entry_points.txt``.

    Parts of optional subpackages that are not installed are left out.
    """
    points = [(name, *place.split(":")) for name, place in _own_points()[f"dpfed.{kind}"].items()]
    return {
        name: Announced(name, "dpfed", __version__, module, attribute)
        for name, module, attribute in points
        if has(module.split(".")[1])
    }


def announced(kind: Kind) -> dict[str, Announced]:
    """Returns the parts of a kind that other packages announce, by name: entry points of a group such as ``dpfed.losses``.

    Raises:
        UserError: If two packages announce the same name.
    """
    parts: dict[str, Announced] = {}
    for point in _entry_points().select(group=f"dpfed.{kind}"):
        if point.module.partition(".")[0] == "dpfed":  # `shipped` returns these
            continue
        package, version = (point.dist.name, point.dist.version) if point.dist else ("unknown", "unknown")
        part = Announced(point.name, package, version, point.module, point.attr)
        if parts.setdefault(point.name, part) != part:
            raise UserError(
                f"the packages {parts[point.name].package} and {package} both announce '{point.name}' as one of dpfed.{kind}: "
                "uninstall one of them. [part-twice]"
            )
    return parts


def file_digest(module: str) -> str | None:
    """Computes the first 16 hexadecimal digits of the SHA-256 of a module's file, without importing the module.

    Args:
        module: Full name of the module.

    Returns:
        The digits; ``None`` if the module has no file that can be found.
    """
    source = find_source(module)
    origin = source.file if source else getattr(sys.modules.get(module), "__file__", None)  # a compiled module, or __main__
    if origin is None or not Path(origin).is_file():
        return None
    return hashlib.sha256(Path(origin).read_bytes()).hexdigest()[:16]


def named(name: str, key: str) -> Any:
    """Imports the object that a configuration names, from an installed module or from a module in the current folder.

    Args:
        name: Name of the object, ``package.module:object``.
        key: Configuration key that holds the name, for messages.

    Raises:
        UserError: If the object does not exist or cannot be imported; if the name stands for an object that was passed in
            Python; or if an attribute in the name is itself a module, as in ``package.module:torch.sum``.
    """
    module, _, attribute = name.partition(":")
    if in_python(name):
        raise UserError(
            f"{key} = {name!r} was passed in Python, so no import path leads to it: run the script that started this run "
            "again, or name a function in a module of your own. [part-in-python]"
        )
    try:
        with current_folder_last():
            value = importlib.import_module(module)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0])
        why = "no such module is installed or in the current folder" if missing else f"{type(error).__name__}: {error}"
        raise UserError(
            f"{key} = {name!r} cannot be imported ({why}): install its package, run the command in the module's folder, or "
            "correct the module. [part-import]"
        ) from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise UserError(f"{key} = {name!r}: the module {module} has no {part!r}. [part-missing]")
        value = getattr(value, part)
        if isinstance(value, ModuleType):  # the name should show which module contains the code
            raise UserError(
                f"{key} = {name!r} leads through {part!r} to another module: name an object of that module, as in "
                f"{value.__name__}:object. [part-module]"
            )
    return value


def call_named(name: str, key: str, options: dict[str, Any]) -> Any:
    """Calls the function that a configuration names, and returns its result.

    Args:
        name: Name of the function, ``package.module:function``.
        key: Configuration key that holds the name, for messages.
        options: Keyword arguments of the function.

    Raises:
        UserError: If the object does not exist or cannot be called, or if the call fails.
    """
    function = named(name, key)
    if not callable(function):
        raise other_part(key, name, "is a function", function)
    return _call(function, name, key, options)


def object_named(name: str, key: str, options: dict[str, Any]) -> Any:
    """Returns the callable that a configuration names.

    If the name leads to a class, or if there are options, the named object is called once with the options, and the result of
    this call is returned instead.

    Args:
        name: Name of the object, ``package.module:object``.
        key: Configuration key that holds the name, for messages.
        options: Keyword arguments with which the named object is called; empty: none.

    Raises:
        UserError: If the object does not exist, if calling it fails, or if the returned value cannot be called.
    """
    value = named(name, key)
    made = _call(value, name, key, options) if inspect.isclass(value) or options else value
    if not callable(made):
        raise other_part(key, name, "can be called", made)
    return made


def _call(function: Callable[..., Any], name: str, key: str, options: dict[str, Any]) -> Any:
    try:
        return function(**options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{key} = {name!r} failed: {type(error).__name__}: {error}. Correct its code or its options. [part-fails]"
        ) from error


def other_part(key: str, name: str, expected: str, value: object) -> UserError:
    """Makes the error for a named object of an unexpected kind.

    Args:
        key: Configuration key that holds the name.
        name: Name of the object.
        expected: Verb phrase that describes the expected kind, such as ``"is a function"``.
        value: Object that the name leads to.
    """
    return UserError(f"{key} = {name!r}: expected something that {expected}, got {type(value).__name__}. [part-other]")


def said_of(value: object, name: str | None = None) -> str:
    """Describes a part of the user's own: its name, its package with version, and the hash of its module's file.

    Args:
        value: The part, or the class or function that made it.
        name: Name of the part in the configuration; default: the part's own name, or the name of its class.
    """
    kind = value if hasattr(value, "__qualname__") else type(value)
    module = name.partition(":")[0] if name and not in_python(name) else getattr(kind, "__module__", None) or "?"
    shown = name if name and not in_python(name) else f"{module}:{getattr(kind, '__qualname__', '?')}"
    package = package_of(module)
    return f"{shown}{f', {package}' if package else ''}, SHA-256 {file_digest(module) or 'not known'}"


def package_of(module: str) -> str | None:
    """Returns the name and version of the installed package that contains a module; ``None``: no package contains it."""
    package = _packages().get(module.partition(".")[0], [None])[0]
    return f"{package} {importlib.metadata.version(package)}" if package else None


@functools.cache
def _own_points() -> configparser.ConfigParser:
    points = configparser.ConfigParser(delimiters=("=",))
    points.read_string(_OWN_POINTS.read_text(encoding="utf-8"))
    return points


@functools.cache
def _entry_points() -> Any:  # the type differs between Python 3.11 and 3.12
    return importlib.metadata.entry_points()  # reads a file of every installed package


@functools.cache
def _packages() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())
