"""Estimates the pace of a run from the modification times of its files, because a single look at a run shows no pace."""

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
    """Estimates a run's pace from the times of its checkpoints, of its last commit, and of its releases. Opens no file.

    A commit is the state of the training, which a run writes to disk before it charges the steps since its previous commit.

    Args:
        folder: Folder of the run.
        ledger: Ledger of the run, which records the interruptions; ``None``: the run has taken no step.
    """
    throughput, run = Throughput(), RunDirectory(folder)
    if ledger is not None:
        times = _times(run.commits, _COMMIT, 0) | _times(run.checkpoints, _CHECKPOINT, 0) | _times(run.releases, _RELEASE, 1)
        for done, at in sorted(times.items()):
            throughput.see(done, at, sum(last + 1 < done for last in ledger.repeated_after))
    return throughput


def _times(folder: Path, named: re.Pattern[str], more: int) -> dict[int, float]:
    """Returns the files' modification times, by the number of steps that were done when each file was written.

    Args:
        folder: Folder of the files.
        named: Pattern of their names, whose first group is the number of a step.
        more: Number to add to the number in the name, to get the number of steps done.
    """
    times = {}
    with contextlib.suppress(OSError):  # no such folder, or a checkpoint has replaced the files
        for entry in os.scandir(folder):
            if match := named.fullmatch(entry.name):
                times[int(match[1]) + more] = entry.stat().st_mtime
    return times
