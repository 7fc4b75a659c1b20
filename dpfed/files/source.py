"""Locates the Python source of a module without importing it, so that inspecting unknown code does not run it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """The file and the package that hold a module's source.

    Attributes:
        file: File of the module.
        package: Folder of the outermost package that contains the module; ``None``: the module belongs to no package.
    """

    file: Path
    package: Path | None

    def digest(self) -> str:
        """Returns the SHA-256 digest, hexadecimal, of all Python files of the package and their names.

        For a module without a package, the digest covers its file. A change of a compiled module, a data file, a hidden file
        (such as an editor's ``.#part.py``) or another package that the code imports does not change the digest.

        Raises:
            OSError: If a file cannot be read.
        """
        if self.package is None:
            return _digest([(self.file.name, self.file)])
        return _digest(sorted((file.relative_to(self.package).as_posix(), file) for file in _python_files(self.package)))


def find_source(module: str) -> Source | None:
    """Finds the source of a module. The current folder is searched last.

    Args:
        module: Full name of the module.

    Returns:
        The source; ``None``: there is no such module, or it is compiled or only a folder without ``__init__.py``.
    """
    top, *rest = module.split(".")
    with current_folder_last():
        spec = _spec(top)
        if spec is None:
            return None
        places: Iterable[Path] = [Path(place) for place in spec.submodule_search_locations or ()]
    origin = Path(spec.origin) if spec.has_location and spec.origin else None
    package = origin.parent if origin and origin.name == "__init__.py" else None
    for name in rest:
        match = next(_below(places, name), None)
        if match is None:
            return None
        if match.name == "__init__.py":
            package = package or match.parent
        origin = match if match.is_file() else None
        places = [match.parent if match.is_file() else match] if match.suffix != ".py" or match.name == "__init__.py" else []
    if origin is None or origin.suffix != ".py" or not origin.is_file():
        return None
    return Source(origin.resolve(), None if package is None else package.resolve())


@contextlib.contextmanager
def current_folder_last() -> Iterator[None]:
    """Adds the current folder at the end of ``sys.path`` for the block, so that a search sees the same folders as an import."""
    try:
        here = os.getcwd()
    except OSError:  # the current folder was deleted
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        last = max((place for place, folder in enumerate(sys.path) if folder == here), default=None)
        if last is not None:  # the last entry is the one added above; an earlier one is the user's
            del sys.path[last]


def _spec(top: str) -> ModuleSpec | None:
    """Returns the spec of a top-level module. For a top-level module, Python only looks for files, and runs none of them."""
    for finder in sys.meta_path:
        with contextlib.suppress(ImportError, AttributeError, ValueError):
            if (spec := finder.find_spec(top, None)) is not None:
                return spec
    return None


def _python_files(package: Path) -> Iterator[Path]:
    """Yields a package's Python files. It follows links to folders, as Python does, and visits each folder once."""
    seen: set[str] = set()
    for folder, folders, names in os.walk(package, followlinks=True):
        if (place := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))  # nothing is imported from them
        yield from (Path(folder) / name for name in names if name.endswith(".py") and not name.startswith("."))


def _below(places: Iterable[Path], name: str) -> Iterator[Path]:
    """Yields packages, modules and plain folders of a name, in Python's order, in which compiled modules come first."""
    for place in places:
        package = [place / name / f"__init__{suffix}" for suffix in (*EXTENSION_SUFFIXES, ".py")]
        for file in (*package, *(place / f"{name}{suffix}" for suffix in (*EXTENSION_SUFFIXES, ".py"))):
            if file.is_file():
                yield file
    for place in places:
        if (place / name).is_dir():
            yield place / name


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, file in files:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()
