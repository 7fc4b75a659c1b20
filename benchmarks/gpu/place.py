"""Where a call works, until when, and where its figures go."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import provenance


class TimeIsUp(Exception):
    """The call must end: what is done is kept, and the same command goes on.

    Args:
        text: how far it is.
    """


@dataclass(frozen=True)
class Place:
    """Where a call works, and until when.

    Attributes:
        device: what computes.
        work: runs, stores and figures, which outlive a call.
        data: the folder of CIFAR-10's Parquet files, if it is there.
        ends: when the call should be over, on the clock of `time.time`, which processes share.
        tiny: sizes that a CPU does in seconds.
    """

    device: torch.device
    work: Path
    data: Path | None
    ends: float
    tiny: bool

    @property
    def left(self) -> float:
        """Seconds."""
        return self.ends - time.time()


@dataclass(frozen=True)
class Part:
    """One thing that is measured.

    Attributes:
        file: of the results, without ``gpu-``.
        path: where in its figures the result stands.
        seconds: what it takes on a GPU, about: it is not begun with less time left.
        work: measures; returns figures.
        tiny: whether it can be tried in seconds.
    """

    file: str
    path: tuple[str, ...]
    seconds: float
    work: Callable[[Place], Any]
    tiny: bool = True

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.file}: {', '.join(self.path)}"


class Results:
    """The result files ``gpu-NAME.json`` of this machine.

    Args:
        work: where they are kept.
        command: for the files' heads.
        out: another folder that gets a copy of what is new; ``None``: no.
    """

    def __init__(self, work: Path, command: str, out: Path | None = None) -> None:
        self._folder, self._command, self._out = work / "results", command, out
        self._folder.mkdir(parents=True, exist_ok=True)

    def find(self, part: Part) -> Any:
        """The figures of a part; ``None``: not measured yet."""
        figures: Any = self.figures(part.file)
        for key in part.path:
            figures = figures.get(key) if isinstance(figures, dict) else None
        return figures

    def add(self, part: Part, figures: Any) -> None:
        """Keeps what a part gave."""
        tree = self.figures(part.file)
        inner = tree
        for key in part.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[part.path[-1]] = figures
        content = provenance(seeds=[0]) | {"command": self._command, "figures": tree}
        path = self._folder / f"gpu-{part.file}.json"
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if self._out is not None:
            shutil.copy(path, self._out)

    def figures(self, name: str) -> dict[str, Any]:
        """All figures of a file."""
        path = self._folder / f"gpu-{name}.json"
        return json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}
