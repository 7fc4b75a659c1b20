"""What is found by its name: methods of bounding, what rooms add that an installation may lack, and parts of other packages.

These rooms are `dpfed.baselines` (methods for comparison, BatchNorm) and `dpfed.reproduce` (the papers' experiments and data
sets). Nothing needs them, and nothing else names them.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from dpfed.errors import UserError

Room = Literal["baselines", "reproduce"]
_METHODS = ("bounding", "baselines")  # rooms with a folder of methods


def has(room: str) -> bool:
    """Whether a room is installed."""
    return importlib.util.find_spec(f"dpfed.{room}") is not None


def part(room: Room, name: str) -> ModuleType:
    """A file or folder of a room that is installed, by its name."""
    return importlib.import_module(f"dpfed.{room}.{name}")


def methods() -> dict[str, str]:
    """The module of every method of bounding by the method's name; none is loaded, for most runs need one."""
    folders = [importlib.import_module(f"dpfed.{room}.methods") for room in _METHODS if has(room)]
    return {file.name: f"{folder.__name__}.{file.name}" for folder in folders for file in pkgutil.iter_modules(folder.__path__)}


@dataclass(frozen=True)
class Announced:
    """A part that another installed package announces by an entry point.

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
    def said(self) -> str:
        """What it is, in words: its name, package and version, its module, and the hash of the module's file."""
        origin = getattr(importlib.util.find_spec(self.module), "origin", None)
        digest = "not known"
        if origin is not None and Path(origin).is_file():
            digest = hashlib.sha256(Path(origin).read_bytes()).hexdigest()[:16]
        return f"'{self.name}' of {self.package} {self.version} ({self.module}, SHA-256 {digest})"


def announced(kind: Literal["losses", "importers"]) -> dict[str, Announced]:
    """The parts of a kind that other packages announce, by name: entry points of ``dpfed.losses`` or ``dpfed.importers``.

    Raises:
        UserError: if two packages announce the same name.
    """
    found: dict[str, Announced] = {}
    for point in importlib.metadata.entry_points(group=f"dpfed.{kind}"):
        package, version = (point.dist.name, point.dist.version) if point.dist else ("unknown", "unknown")
        part = Announced(point.name, package, version, point.module, point.attr)
        if found.setdefault(point.name, part) != part:
            raise UserError(
                f"the packages {found[point.name].package} and {package} both announce '{point.name}' as one of dpfed.{kind}: "
                "uninstall one of them. [part-twice]"
            )
    return found
