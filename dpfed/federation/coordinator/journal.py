"""What happened in each step of a federation: public, append-only, and the memory of which step was opened last.

A step is opened here, on disk, before any site is asked; then it is collected, or discarded. One that was opened and never
finished (the server died) is discarded and paid for when the run resumes: sites may have answered, and nobody asks them twice.
Like a ledger's, every line carries a hash over itself and the line before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dpfed.errors import UserError
from dpfed.privacy.ledger import link


class Journal:
    """Reads and extends the journal of one run.

    Args:
        path: of the file, one JSON object per line.

    Raises:
        UserError: if it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        complete = path.read_bytes() if path.exists() else b""
        complete = complete[: complete.rfind(b"\n") + 1]
        if path.exists():
            os.truncate(path, len(complete))  # a line that a crash cut short
        self.lines: list[dict[str, Any]] = []
        self._chain, self._chained = "", False
        for number, line in enumerate(complete.splitlines(), start=1):
            self._read(number, line)

    def opened(self, step: int) -> bool:
        """Whether a step was opened before."""
        return any(line["event"] == "opened" and line["step"] >= step for line in self.lines)

    def write(self, event: str, step: int, **facts: Any) -> None:
        """Adds a line; when this returns, it is on disk."""
        line = {"event": event, "step": step, **facts}
        chain = link(self._chain, line)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "chain": chain}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.append(line)
        self._chain = chain

    def _read(self, number: int, text: bytes) -> None:
        try:
            line = json.loads(text)
            claimed = line.pop("chain", None)
            chain = link(self._chain, line)
            # The first lines of an earlier version's journal have none; behind the first line that has, all have.
            fits = claimed == chain or claimed is None and not self._chained
        except (ValueError, TypeError, AttributeError):
            fits = False
        if not fits:
            raise UserError(
                f"the journal {self._path} is damaged at line {number}: which steps the sites were asked for is no longer "
                "certain. Restore the file from a backup."
            )
        self.lines.append(line)
        self._chain, self._chained = chain, self._chained or claimed is not None

    def rounds_of(self, site: str) -> int:
        """In how many steps that came to something a site's answer was counted."""
        last = {line["step"]: line for line in self.lines}
        return sum(line["event"] == "collected" and site in line["arrived"] for line in last.values())
