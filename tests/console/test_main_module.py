"""`python -m dpfed`, wherever it is called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dpfed

PACKAGE = Path(dpfed.__file__).parent
# What an editable installation does: a finder that comes after Python's own.
FINDER = f"""
import sys
from importlib.machinery import PathFinder
from importlib.util import spec_from_file_location

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "dpfed":
            return spec_from_file_location(name, {str(PACKAGE / "__init__.py")!r})
        if name.startswith("dpfed.") and name.count(".") == 1:
            return PathFinder.find_spec(name, [{str(PACKAGE)!r}])

sys.meta_path.insert(sys.meta_path.index(PathFinder) + 1, Finder)
"""


@pytest.fixture
def installed(tmp_path):
    """The environment of a process that has an editable installation, and the folder that it works in."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FINDER)
    (tmp_path / "work").mkdir()
    return os.environ | {"PYTHONPATH": str(tmp_path / "site")}, tmp_path / "work"


@pytest.mark.parametrize("words", [["--version"], ["privacy", "calibrate", "--help"], ["config", "show", "quickstart"]])
@pytest.mark.parametrize("folder", ["dpfed/docs", "other"])
def test_a_folder_of_the_same_name_is_not_in_the_way(installed, folder, words):
    environment, work = installed
    (work / folder).mkdir(parents=True)
    command = [sys.executable, "-m", "dpfed", *words]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if words == ["--version"]:
        assert done.stdout == f"dpfed {dpfed.__version__}\n"


def test_a_checkout_comes_before_what_is_installed(installed):
    environment, work = installed
    (work / "dpfed").mkdir()
    (work / "dpfed" / "__init__.py").write_text("")
    (work / "dpfed" / "__main__.py").write_text("print('the checkout')")
    done = subprocess.run([sys.executable, "-m", "dpfed"], cwd=work, env=environment, capture_output=True, text=True)
    assert done.stdout == "the checkout\n"
