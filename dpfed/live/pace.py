"""The pace of a run by the times of its files, which is all that one look sees."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.privacy.ledger import Ledger
from dpfed.progress import Throughput

_CHECKPOINT = re.compile(r"step-(\d+)\.safetensors")
_RELEASE = re.compile(r"(\d+)-[0-9a-f]+\.f32")
_COMMIT = re.compile(r"(\d+)\.state")


def pace_of_files(folder: Path, ledger: Ledger | None) -> Throughput:
    """What the times of checkpoints, of the last commit, and of the releases since the last one, say. None of them is opened.

    Args:
        folder: of a run.
        ledger: of the run, which knows when it was interrupted; ``None``: no step was taken.
    """
    throughput, run = Throughput(), RunDirectory(folder)
    if ledger is not None:
        times = _times(run.commits, _COMMIT, 0) | _times(run.checkpoints, _CHECKPOINT, 0) | _times(run.releases, _RELEASE, 1)
        for done, at in sorted(times.items()):
            throughput.see(done, at, sum(last + 1 < done for last in ledger.repeated_after))
    return throughput


def _times(folder: Path, named: re.Pattern[str], more: int) -> dict[int, float]:
    """By how many steps were done, when a file was written whose name counts them."""
    found = {}
    with contextlib.suppress(OSError):  # no such folder, or a checkpoint has taken in what was there
        for entry in os.scandir(folder):
            if match := named.fullmatch(entry.name):
                found[int(match[1]) + more] = entry.stat().st_mtime
    return found
