"""dpfed as a user gets it: built from a copy of the repository, installed into an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import matplotlib

from tests.patience import run_to_end

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
FOLDERS = ("dpfed", "configs", "benchmarks", "tests")
DEPENDENCIES = sysconfig.get_path("purelib")  # what the tests themselves run with

# Whoever reads a file of the checkout, imports included, is noticed; only the dependencies may lie there.
GUARD = f"""
import os, sys
CHECKOUT, DEPENDENCIES = {str(ROOT)!r} + os.sep, {DEPENDENCIES!r}
def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes)):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path.startswith(CHECKOUT) and not path.startswith(DEPENDENCIES):
            raise RuntimeError(f"{{path}} was read, which an installed dpfed does not have")
sys.addaudithook(refuse)
"""


def build(what: str, source: Path, out: Path) -> Path:
    """Calls the build backend as pip does: ``sdist`` or ``wheel``. No network, no isolation."""
    out.mkdir(exist_ok=True)
    code = "import sys, setuptools.build_meta as backend; print(getattr(backend, 'build_' + sys.argv[1])(sys.argv[2]))"
    command = [sys.executable, "-W", "ignore", "-c", code, what, str(out)]
    done = run_to_end(command, cwd=source, env=outside(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.split()[-1]


def outside(**more: str) -> dict[str, str]:
    """An environment that knows nothing of this checkout, and of the user only where matplotlib keeps its list of fonts."""
    return {"PATH": os.defpath, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": matplotlib.get_cachedir(), **more}


@dataclass(frozen=True)
class Installed:
    """An environment with dpfed in it, and an empty folder to be in."""

    prefix: Path
    folder: Path

    def run(self, *words: object, check: int | None = 0, **options) -> subprocess.CompletedProcess[str]:
        """Runs ``dpfed`` (or ``python``) in the empty folder."""
        program, *arguments = map(str, words)
        environment = options.pop("env", None) or outside(HOME=str(self.prefix.parent / "home"))
        command = [str(self.prefix / "bin" / program), *arguments]
        options = {"cwd": self.folder, "env": environment, "timeout": 300, **options}
        done = run_to_end(command, capture_output=True, text=True, errors="replace", check=False, **options)
        assert check is None or done.returncode == check, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert check is None or "Traceback" not in done.stderr, done.stderr
        return done

    @property
    def packages(self) -> Path:
        """Where dpfed is installed."""
        return next((self.prefix / "lib").glob("python*/site-packages"))


def install(what: Path, folder: Path, *options: str) -> Installed:
    """A new environment with dpfed and its dependencies, which are those of the tests."""
    uv = shutil.which("uv")
    prefix, empty = folder / "env", folder / "empty"
    venv.create(prefix, symlinks=True, with_pip=uv is None)
    made, python = Installed(prefix, empty), str(prefix / "bin" / "python")
    (made.packages / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")  # after our own; their .pth files are not read
    pip = [uv, "pip", "install", "--offline", "--python", python] if uv else [python, "-m", "pip", "install", "--no-index"]
    env = outside(HOME=str(folder), UV_NO_CACHE="1")
    command = [*pip, "--no-deps", "--no-build-isolation", *options, str(what)]
    done = run_to_end(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    empty.mkdir()
    (folder / "home").mkdir()
    return made
