"""What happened in each step of a federation: public, append-only, and the memory of which step was opened last.

A step is opened here, on disk, before any site is asked; then it is collected, or discarded. One that was opened and never
finished (the server died) is discarded and paid for when the run resumes: sites may have answered, and nobody asks them twice.
Like a ledger's, every line carries a hash over itself and the line before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpfed.errors import UserError
from dpfed.files.json_lines import DamagedLine, GrewElsewhere, Lines, append_line, drop_torn_line, read_lines
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
        try:
            lines = read_lines(path) if path.exists() else Lines([])
        except DamagedLine as error:
            raise UserError(self._damaged(error.number)) from None
        self.lines: list[dict[str, Any]] = []
        self._chain = ""
        for number, line in enumerate(lines.entries, start=1):
            self._read(number, line)
        self._lines = lines

    def opened(self, step: int) -> bool:
        """Whether a step was opened before."""
        return any(line["event"] == "opened" and line["step"] >= step for line in self.lines)

    def write(self, event: str, step: int, **facts: Any) -> None:
        """Adds a line; when this returns, it is on disk."""
        line = {"event": event, "step": step, **facts}
        chain = link(self._chain, line)
        try:
            self._lines = drop_torn_line(self._path, self._lines)  # nobody was asked before the last line was whole
            end = append_line(self._path, {**line, "chain": chain}, self._lines.end)
        except GrewElsewhere as error:
            raise UserError(f"{self._path} was written by another process while this one trained: end one of them.") from error
        self._lines = Lines([], end, end)
        self.lines.append(line)
        self._chain = chain

    def _read(self, number: int, line: dict[str, Any]) -> None:
        claimed = line.pop("chain", None)
        chain = link(self._chain, line)
        if claimed != chain or not _is_whole(line):
            raise UserError(self._damaged(number))
        self.lines.append(line)
        self._chain = chain

    def _damaged(self, number: int) -> str:
        return (
            f"the journal {self._path} is damaged at line {number}: which steps the sites were asked for is no longer certain. "
            "Restore the file from a backup."
        )

    def rounds_of(self, site: str) -> int:
        """In how many steps that came to something a site's answer was counted."""
        last = {line["step"]: line for line in self.lines}
        return sum(line["event"] == "collected" and site in line["arrived"] for line in last.values())


def _is_whole(line: dict[str, Any]) -> bool:
    """Whether a line says which step, and what happened in it."""
    event, step = line.get("event"), line.get("step")
    if not isinstance(event, str) or type(step) is not int or step < 0:
        return False
    return isinstance(line.get("arrived", []), list) and isinstance(line.get("missing", {}), dict)
