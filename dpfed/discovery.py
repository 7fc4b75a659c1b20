"""What is found by its name: methods of bounding, and what rooms add that an installation may lack.

These rooms are `dpfed.baselines` (methods for comparison, BatchNorm) and `dpfed.reproduce` (the papers' experiments and data
sets). Nothing needs them, and nothing else names them.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from types import ModuleType
from typing import Literal

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
