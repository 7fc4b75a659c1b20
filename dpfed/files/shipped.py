"""Finds the files that dpfed ships: configurations, sweeps, architectures of small towers, and results from papers.

The current folder does not matter. In the repository the files are in ``configs/`` and ``benchmarks/published/``; setup.py
copies them into the installed package. A name such as ``quickstart`` stands for a shipped file wherever such a file is
expected. A file of the user with that name takes precedence, except in `shipped_file`.
"""

from __future__ import annotations

import os
from pathlib import Path

from dpfed.errors import UserError, nearest

_PACKAGE = Path(__file__).resolve().parents[1]
_SWEEPS, _TOWERS = "sweeps", "towers"


def configs() -> Path:
    """Returns the folder of the shipped configurations."""
    return _folder("configs", "configs")


def published(paper: str) -> Path:
    """Returns the path of the CSV file with the results that a paper reports."""
    return _folder("published", "benchmarks/published") / f"{paper}.csv"


def config_names() -> tuple[str, ...]:
    """Returns the names of all configurations, such as ``quickstart`` and ``adapt/shapes``; those in folders come last."""
    names = _names(".toml")
    return tuple(sorted((name for name in names if not name.startswith(f"{_SWEEPS}/")), key=lambda name: ("/" in name, name)))


def sweep_names() -> tuple[str, ...]:
    """Returns the names of all sweep files, such as ``sweeps/table5``."""
    return tuple(name for name in _names(".toml") if name.startswith(f"{_SWEEPS}/"))


def tower_names() -> tuple[str, ...]:
    """Returns the names of all shipped open_clip architectures, such as ``towers/small.json``."""
    return tuple(f"{name}.json" for name in _names(".json") if name.startswith(f"{_TOWERS}/"))


def find_config(given: str | Path) -> Path:
    """Returns the configuration file for a path or a shipped name; ``.toml`` may be left out.

    An absolute path is returned even if no file is there.

    Raises:
        UserError: If there is no such file and dpfed ships no config of that name, or if the name is that of a sweep.
    """
    file = _own(given)
    if file is None and str(given).removesuffix(".toml") in sweep_names():
        raise UserError(f"{given} is a sweep, not a config: `dpfed sweep CONFIG {given}` runs it on a config. [shipped-sweep]")
    return file or _shipped(given, config_names(), "config")


def find_sweep(given: str | Path) -> Path:
    """Returns the sweep file for a path or a shipped name, such as ``sweeps/table5`` or ``table5``.

    An absolute path is returned even if no file is there.

    Raises:
        UserError: If there is no such file, and dpfed ships no sweep of that name.
    """
    short = {name.removeprefix(f"{_SWEEPS}/"): name for name in sweep_names()}
    name = str(given).removesuffix(".toml")
    return _own(given) or _shipped(short.get(name, given), sweep_names(), "sweep")


def find_tower(given: str) -> Path | None:
    """Returns the shipped architecture of a name, such as ``towers/small.json``.

    Returns:
        Path of the architecture; ``None``: dpfed ships none of this name, or a file of the user has the name.
    """
    return configs() / given if given in tower_names() and not os.path.lexists(given) else None


def shipped_file(name: str) -> Path:
    """Returns the path of the shipped config, sweep or tower with a name. The user's own files are ignored.

    Raises:
        UserError: If dpfed ships no file of that name.
    """
    bare = name.removesuffix(".toml")
    if bare in config_names() or bare in sweep_names():
        return configs() / f"{bare}.toml"
    if name in tower_names():
        return configs() / name
    raise UserError(
        f"dpfed ships nothing named '{name}'; {_meant(name, (*config_names(), *sweep_names(), *tower_names()))} [shipped-none]"
    )


def shipped_name(given: str | Path) -> str | None:
    """Returns the name of the shipped file that `find_config` or `find_sweep` would return; ``None``: no shipped file."""
    if _own(given) is not None:
        return None
    name = str(given).removesuffix(".toml")
    return next((known for known in (name, f"{_SWEEPS}/{name}") if known in (*config_names(), *sweep_names())), None)


def _own(given: str | Path) -> Path | None:
    """Returns the user's own file, given with or without its suffix. A folder of that name hides no shipped file."""
    candidates = (str(given), f"{given}.toml")
    return next((Path(name) for name in candidates if os.path.lexists(name) and not os.path.isdir(name)), None)


def _shipped(given: str | Path, names: tuple[str, ...], what: str) -> Path:
    name = str(given).removesuffix(".toml")
    if name in names:
        return configs() / f"{name}.toml"
    path = Path(given)
    if path.is_absolute():
        return path  # the reader of the file reports what is wrong
    there = f"{path} is a folder, not a {what}" if path.is_dir() else f"there is no file {path}"
    raise UserError(f"{there}, and dpfed ships no {what} of that name; {_meant(name, names)} [shipped-no-file]")


def _meant(given: str, names: tuple[str, ...]) -> str:
    """Returns a hint with the shipped names nearest to a given name or path, such as ``configs/NAME.toml`` of a checkout."""
    bare = given.removeprefix(f"{configs().name}/").removesuffix(".toml")
    return f"did you mean '{bare}'?" if bare in names else nearest(bare, names)


def _names(suffix: str) -> list[str]:
    root = configs()
    files = (path.relative_to(root) for path in root.rglob(f"*{suffix}"))
    return sorted(file.with_suffix("").as_posix() for file in files if not any(part.startswith(".") for part in file.parts))


def _folder(installed: str, checkout: str) -> Path:
    """Returns the folder of shipped files: in the installed package, or, in a checkout, beside the package."""
    for folder in (_PACKAGE / installed, _PACKAGE.parent / checkout):
        if folder.is_dir():
            return folder
    raise UserError(f"this installation of dpfed lacks {_PACKAGE / installed}: install dpfed again. [shipped-lacking]")
