"""What happened in each step of a federation: public, append-only, and the memory of which step was opened last.

A step is opened here, on disk, before any site is asked; then it is collected, or discarded. One that was opened and never
finished (the server died) is discarded and paid for when the run resumes: sites may have answered, and nobody asks them twice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """Reads and extends the journal of one run.

    Args:
        path: of the file, one JSON object per line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        complete = path.read_bytes() if path.exists() else b""
        complete = complete[: complete.rfind(b"\n") + 1]
        if path.exists():
            os.truncate(path, len(complete))  # a line that a crash cut short
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in complete.splitlines()]

    def opened(self, step: int) -> bool:
        """Whether a step was opened before."""
        return any(line["event"] == "opened" and line["step"] >= step for line in self.lines)

    def write(self, event: str, step: int, **facts: Any) -> None:
        """Adds a line; when this returns, it is on disk."""
        line = {"event": event, "step": step, **facts}
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.append(line)

    def rounds_of(self, site: str) -> int:
        """In how many steps that came to something a site's answer was counted."""
        last = {line["step"]: line for line in self.lines}
        return sum(line["event"] == "collected" and site in line["arrived"] for line in last.values())
