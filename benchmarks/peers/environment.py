"""The peers' own environment: made in build/ from the lock file beside this one, if it is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "peers"  # about 6 GB
LOCK = Path(__file__).with_name("requirements.txt")
PEERS = ("jax", "jax_privacy", "opacus", "open_clip_torch", "flwr", "torch", "numpy")


def inside() -> bool:
    """Whether this process runs in it."""
    return Path(sys.prefix).resolve() == PLACE.resolve()


def go_inside() -> None:
    """Starts this command anew in the environment, which is made first if need be. Does not return."""
    python = ready()
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(ROOT)
    os.execv(python, [str(python), "-m", "benchmarks.peers", *sys.argv[1:]])


def ready() -> Path:
    """Makes the environment unless it is there as the lock file says; returns its Python."""
    if shutil.which("uv") is None:
        raise SystemExit("the peers' environment is made by uv, which is not here: pip install uv")
    python, installed = PLACE / "bin" / "python", PLACE / "requirements.txt"
    if not installed.exists() or installed.read_bytes() != LOCK.read_bytes():
        print(f"installing the peers into {PLACE}, about 6 GB", flush=True)
        subprocess.run(["uv", "venv", "--quiet", "--allow-existing", "--python", sys.executable, PLACE], check=True)
        install = ["uv", "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", LOCK]
        subprocess.run(install, check=True)
        installed.write_bytes(LOCK.read_bytes())
    return python


def versions() -> dict[str, str]:
    """Of the peers that are installed where this process runs."""
    found = {}
    for name in PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
