"""One wheel and one environment for all tests of the package."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from installation import FOLDERS, GUARD, ROOT, SOURCES, Installed, build, install


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    """What the repository has, caches and results included, without git."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="session")
def sdist(source, tmp_path_factory) -> Path:
    return build("sdist", source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(sdist, tmp_path_factory) -> Path:
    """From the sdist, as `python -m build` and `uv build` make it: what the sdist lacks, the wheel lacks."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    return build("wheel", next(unpacked.iterdir()), tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def guarded(installed) -> Installed:
    """The installed package, where reading the checkout is an error."""
    (installed.packages / "guard.py").write_text(GUARD)
    (installed.packages / "guard.pth").write_text("import guard\n")
    return installed
