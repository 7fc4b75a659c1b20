"""Carries files to a borrowed machine in loads, each small enough for one call, and results back. Needs Python alone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BAGGAGE = ROOT / ".gpu"  # git ignores it
RESULTS = ROOT / "benchmarks" / "results"
CALL = 64 << 20  # bytes that a call carries: the checkout, and what is carried beside it
_SPARE = 1 << 20
_KINDS = ("wheels", "cifar10")
COMMIT = "commit"


def pack(sources: dict[str, list[Path]], commit: str, call: int = CALL) -> list[Path]:
    """Divides files among loads. Each load also states the commit.

    Args:
        sources: Files of each of `_KINDS`.
        commit: Commit of the checkout; the copy of the checkout on the other machine has no git history.
        call: Bytes that a call carries: the checkout and a load.

    Returns:
        The folders of the loads.

    Raises:
        SystemExit: If a file is larger than the room for a load.
    """
    room = call - checkout_bytes() - _SPARE
    for old in BAGGAGE.glob("load-*"):
        shutil.rmtree(old)
    loads: list[Path] = []
    left: list[int] = []
    files = sorted(((file.stat().st_size, kind, file) for kind, paths in sources.items() for file in paths), reverse=True)
    for size, kind, file in files:
        if size > room:
            raise SystemExit(f"{file} has {size:,} bytes, and a call carries {room:,} beside the checkout: leave it out")
        number = next((number for number, free in enumerate(left) if free >= size), len(left))
        if number == len(left):
            loads.append(BAGGAGE / f"load-{number + 1}")
            left.append(room)
        left[number] -= size
        place = loads[number] / kind / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    for load in loads:
        (load / COMMIT).write_text(commit, encoding="utf-8")
    return loads


def take(work: Path) -> None:
    """Copies the loads that this call carried to `work`, which is kept between calls."""
    for load in sorted(BAGGAGE.glob("load-*")):
        for file in (file for kind in _KINDS for file in sorted((load / kind).glob("*"))):
            place = work / file.parent.name / file.name
            if not place.exists() or place.stat().st_size != file.stat().st_size:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, place)
        work.mkdir(parents=True, exist_ok=True)
        shutil.copy(load / COMMIT, work / COMMIT)


def fetch(folder: Path) -> list[Path]:
    """Copies results that came back into the checkout, and returns their paths there.

    Raises:
        SystemExit: If there are no results.
    """
    brought = [RESULTS / file.name for file in sorted(folder.rglob("gpu-*.json"))]
    if not brought:
        raise SystemExit(f"there are no results in {folder}: give the folder that holds gpu-*.json")
    for file in folder.rglob("gpu-*.json"):
        shutil.copyfile(file, RESULTS / file.name)
    return brought


def checkout_bytes() -> int:
    """Returns the bytes that each call carries anyway: tracked files, untracked files that git does not ignore, and shared/."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    return _bytes(ROOT / name for name in listed.stdout.split("\0") if name) + _bytes((ROOT / "shared").rglob("*"))


def _bytes(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.is_file())
