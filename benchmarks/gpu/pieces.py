"""An unfinished run as files small enough to be carried, and back. Needs nothing but Python.

Kept are the newest checkpoint and what a resumed run reads beside it; older checkpoints and the releases before it stay behind.
The run's secret key is among it: this is for public records only.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

PIECE = ".piece-"  # RUN.step-00000400.piece-03-of-12
BYTES = 15 << 20
_NAME = re.compile(r"(.+\.step-\d+)\.piece-(\d+)-of-(\d+)")


def unfinished(work: Path) -> list[Path]:
    """The runs that have a checkpoint and no results yet."""
    folders = sorted(path.parent for path in work.rglob("ledger.jsonl"))
    return [run for run in folders if not (run / "results.json").exists() and _checkpoints(run)]


def cut(run: Path, work: Path) -> Iterator[tuple[str, bytes]]:
    """The pieces of a run: their names and contents.

    Args:
        run: its directory, which nothing writes to meanwhile.
        work: the folder that it lies in; the same place in another such folder is where it will be.
    """
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for file in _kept(run):
                archive.add(file, arcname=str(file.relative_to(work)))
        content = buffer.getvalue()
    count = -(-len(content) // BYTES)
    for number in range(count):
        name = f"{run.name}.{_checkpoints(run)[-1].stem}{PIECE}{number + 1:02}-of-{count:02}"
        yield name, content[number * BYTES : (number + 1) * BYTES]


def join(pieces: Path, work: Path) -> list[str]:
    """Restores the runs of which all pieces are there, unless they are there themselves.

    Returns:
        What is missing, in words.
    """
    found: dict[tuple[str, int], dict[int, Path]] = {}
    for path in pieces.glob(f"*{PIECE}*"):
        if match := _NAME.fullmatch(path.name):
            found.setdefault((match[1], int(match[3])), {})[int(match[2])] = path
    missing = []
    for (name, count), parts in sorted(found.items(), reverse=True):  # later steps come first
        if len(parts) < count:
            absent = ", ".join(str(number) for number in range(1, count + 1) if number not in parts)
            missing.append(f"{name}: pieces {absent} of {count} are still missing")
            continue
        content = b"".join(parts[number].read_bytes() for number in range(1, count + 1))
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            first = archive.getnames()[0]
            if not (work / first).exists():
                archive.extractall(work, filter="data")
    return missing


def _kept(run: Path) -> Iterator[Path]:
    newest = _checkpoints(run)[-1]
    step = int(newest.stem.partition("-")[2])
    checkpoints = {newest}
    if not _tensors(_checkpoints(run)[0]) <= _tensors(newest):  # frozen weights are in the first alone
        checkpoints.add(_checkpoints(run)[0])
    for file in sorted(path for path in run.rglob("*") if path.is_file()):
        inside = file.relative_to(run).parts[0]
        late = inside == "releases" and int(file.name.partition("-")[0]) >= step
        if late or (inside == "checkpoints" and file in checkpoints) or inside not in ("checkpoints", "releases"):
            yield file


def _checkpoints(run: Path) -> list[Path]:
    return sorted(run.glob("checkpoints/step-*.safetensors"))


def _tensors(checkpoint: Path) -> set[str]:
    """The names of the model's tensors in a checkpoint, from its header."""
    with open(checkpoint, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name for name in header if name.startswith("model/")}
