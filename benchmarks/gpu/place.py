"""The folders and the time limit of a call, its parts, and its result files. A call is one use of a borrowed machine."""

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
    """Raised when the call must end. What is done is kept, and the same command continues in the next call.

    Args:
        text: Message about how far the call got.
    """


@dataclass(frozen=True)
class Place:
    """The device, the folders and the time limit of a call.

    Attributes:
        device: Device that computes.
        work: Folder for runs, stores and figures, which are kept between calls.
        data: Folder of CIFAR-10's Parquet files; ``None``: there is none.
        ends: Time at which the call should be over, in seconds as `time.time` counts them.
        tiny: Whether everything is so small that a CPU computes it in seconds.
    """

    device: torch.device
    work: Path
    data: Path | None
    ends: float
    tiny: bool

    @property
    def left(self) -> float:
        """Seconds until the call should be over."""
        return self.ends - time.time()


@dataclass(frozen=True)
class Part:
    """One thing that is measured.

    Attributes:
        file: Name of the result file, without ``gpu-`` and suffix.
        path: Keys that lead to the result in the file's figures.
        seconds: Approximate duration on a GPU; the part is not begun if less time is left.
        work: Function that measures the part and returns its figures.
        tiny: Whether the part can be tried in seconds on a CPU.
    """

    file: str
    path: tuple[str, ...]
    seconds: float
    work: Callable[[Place], Any]
    tiny: bool = True

    @property
    def name(self) -> str:
        """Name of the part for people."""
        return f"{self.file}: {', '.join(self.path)}"


class Results:
    """The result files ``gpu-NAME.json`` of this machine.

    Args:
        work: Folder whose subfolder ``results`` keeps the files.
        command: Command line, which the files state.
        out: Folder that gets a copy of each file that changes; ``None``: there is none.
    """

    def __init__(self, work: Path, command: str, out: Path | None = None) -> None:
        self._folder, self._command, self._out = work / "results", command, out
        self._folder.mkdir(parents=True, exist_ok=True)

    def find(self, part: Part) -> Any:
        """Returns the figures of a part; ``None``: it was not measured yet."""
        figures: Any = self.figures(part.file)
        for key in part.path:
            figures = figures.get(key) if isinstance(figures, dict) else None
        return figures

    def add(self, part: Part, figures: Any) -> None:
        """Writes the figures of a part into its file."""
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
        """Returns all figures of a file; empty if there is no such file."""
        path = self._folder / f"gpu-{name}.json"
        return json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}
