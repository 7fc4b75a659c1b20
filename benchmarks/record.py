"""Writes and reads result files. Each has all that is needed to repeat it: command, commit, hardware, versions, seeds."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import dpfed
from dpfed.artifacts.provenance import hardware

RESULTS = Path(__file__).parent / "results"


COMMIT = "DPFED_COMMIT"  # the environment's word for the commit, where the code is a copy without its repository


def write_result(name: str, figures: dict[str, Any], seeds: list[int]) -> Path:
    """Writes ``benchmarks/results/NAME.json``.

    Args:
        name: Name of the result.
        figures: Figures, as a mapping for JSON.
        seeds: Seeds that the benchmark used.

    Returns:
        The path of the file.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**provenance(seeds), "figures": figures}, indent=2) + "\n", encoding="utf-8")
    return path


def provenance(seeds: list[int]) -> dict[str, Any]:
    """Returns what a result file states besides its figures."""
    return {
        "command": f"python -m {module_name()} {shlex.join(sys.argv[1:])}".strip(),
        "commit": os.environ.get(COMMIT) or commit(),
        "hardware": hardware(),
        "versions": {"dpfed": dpfed.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "seeds": seeds,
    }


def commit() -> str:
    """Returns the commit of the checkout, with ``-dirty`` if the code has changed since; empty if git is missing."""
    return _git("rev-parse", "HEAD") + ("-dirty" if _git("status", "--porcelain", "--", ":/dpfed", ":/configs") else "")


def figures(name: str) -> dict[str, Any]:
    """Returns the figures of a result file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["figures"]


def made_by(name: str) -> str:
    """Names the commit of the code that made a result file, for studies that were carried out once, whose code is not kept."""
    commit, _, changed = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["commit"].partition("-")
    return f"Made by the code at commit {commit[:7]}{', with changes' if changed else ''}."


def module_name() -> str:
    """Returns the name of the module that was started with ``python -m``."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).name


def _git(*arguments: str) -> str:
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=RESULTS.parent).stdout.strip()
