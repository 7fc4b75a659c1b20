"""Carries packages to a machine that has torch and little else: those that dpfed needs, in the versions of requirements.lock.

`download` needs the packages of requirements.lock installed on this machine; `unpack` needs Python alone.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "3.12"
THERE = ("torch", "torchvision", "numpy", "pillow")
_DOWNLOADS_ONLY = ("hf-xet",)  # of a package that fetches weights: nothing is fetched where there is no network
_GLIBC = range(28, 4, -1)  # manylinux_2_N: a machine with glibc 2.28 or later takes all of them


def needed(there: Iterable[str] = THERE) -> list[str]:
    """Returns the names of all direct and indirect dependencies of dpfed and open_clip, without the packages in `there`."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    open_requirements = [*project["dependencies"], *project["optional-dependencies"]["clip"]]
    skipped, packages = {canonical(name) for name in (*there, *_DOWNLOADS_ONLY)}, set()
    while open_requirements:
        requirement = Requirement(open_requirements.pop())
        name = canonical(requirement.name)
        if name not in skipped | packages and (requirement.marker is None or requirement.marker.evaluate(_environment())):
            packages.add(name)
            open_requirements += importlib.metadata.requires(name) or []
    return sorted(packages)


def locked(names: Iterable[str]) -> str:
    """Returns the lines of requirements.lock for the given packages, with versions and hashes, but without conditions.

    Raises:
        SystemExit: If a package is not in requirements.lock.
    """
    from packaging.markers import Marker

    entries: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text(encoding="utf-8")):
        head, _, hashes = entry.partition("\\\n")
        pinned, _, condition = head.partition(";")
        if "==" in pinned and (not condition.strip() or Marker(condition.strip()).evaluate(_environment())):
            entries[canonical(pinned.partition("==")[0])] = f"{pinned.strip()} \\\n{hashes.rstrip()}\n"
    if missing := [name for name in names if name not in entries]:
        raise SystemExit(f"requirements.lock lacks {', '.join(missing)}: run `make lock`")
    return "".join(entries[name] for name in names)


def download(names: Iterable[str], folder: Path) -> list[Path]:
    """Fetches wheels for Linux on x86-64 from the package registry.

    Raises:
        SystemExit: If a wheel cannot be fetched.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(locked(names), encoding="utf-8")
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON]
    options += [f"--platform={platform}" for platform in platforms]
    done = subprocess.run([*_pip(), "download", "--quiet", *options, "--dest", str(folder), "--requirement", str(requirements)])
    requirements.unlink()
    if done.returncode:
        raise SystemExit("the wheels could not be fetched: see above")
    return sorted(folder.glob("*.whl"))


def unpack(wheels: Iterable[Path], site: Path) -> None:
    """Unpacks wheels into a folder for ``PYTHONPATH``. A wheel that was unpacked there before is skipped."""
    site.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        done = site / f"{wheel.name}.unpacked"
        if done.exists():
            continue
        with zipfile.ZipFile(wheel) as archive:
            for top in {site / name.partition("/")[0] for name in archive.namelist()}:
                if top.is_symlink():  # nothing is written to where a link leads
                    top.unlink()
            archive.extractall(site)
        for data in site.glob("*.data"):  # what a wheel wants beside its packages; only more packages matter here
            for kind in ("purelib", "platlib"):
                if (data / kind).is_dir():
                    shutil.copytree(data / kind, site, dirs_exist_ok=True)
            shutil.rmtree(data)
        done.touch()


def canonical(name: str) -> str:
    """Returns a package's name in the normalised form in which registries compare names."""
    return re.sub(r"[-_.]+", "-", name).lower().strip()


def _environment() -> dict[str, str]:
    return {
        "python_version": PYTHON,
        "python_full_version": f"{PYTHON}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "os_name": "posix",
        "extra": "",
    }


def _pip() -> list[str]:
    """Returns the command that runs pip. pip can fetch wheels for another machine; uv cannot, but it can run pip."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if pip := shutil.which("pip"):
        return [pip]
    uv = shutil.which("uv")
    return [uv, "tool", "run", "pip"] if uv else [sys.executable, "-m", "uv", "tool", "run", "pip"]
