"""Reads and writes a replica of a budget's ledger: an append-only file of JSON lines.

Every line carries a hash over itself and all lines before it. A run begins only when the line of its reservation is complete
and on disk. So no run has acted on a last line that lacks its newline.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpfed.budgets.ledger import BudgetLedger, Entry, Head
from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically
from dpfed.files.json_lines import DamagedLine, GrewElsewhere, append_line, drop_torn_line, read_lines
from dpfed.privacy.ledger import link


def read(path: Path) -> BudgetLedger | None:
    """Reads a replica of a ledger and checks every line.

    Returns ``None`` if the file is missing, or its first line is truncated. A first line is written atomically, so a truncated
    first line means damage: callers refuse such a file unless they find another replica.

    Raises:
        UserError: If the file cannot be read, or is damaged; the message names the line.
    """
    return _read(path)[0]


def write_missing(path: Path, budget: BudgetLedger) -> None:
    """Appends the missing entries to a replica, or creates the replica. When the function returns, all entries are on disk.

    Args:
        path: Path of the replica; the caller holds its lock.
        budget: Complete ledger.

    Raises:
        UserError: If the replica is damaged or cannot be written, or another process writes to it.
    """
    try:
        known, chain, end = _read(path, mend=True)
        missing = [
            entry.model_dump(exclude_none=True) | ({} if entry.cost is None else {"cost": entry.cost})
            for entry in (known or BudgetLedger(budget.head)).lacks(budget)
        ]
        if known is None:  # in one write: a first line without a budget would be useless
            write_atomically(path, "".join(json.dumps(line) + "\n" for line in _chained([budget.head.model_dump(), *missing])))
            return
        for line in _chained(missing, chain):
            end = append_line(path, line, end)
    except OSError as error:
        raise UserError(
            f"the budget's ledger {path} cannot be written ({error.strerror or error}), so this command stops. No run "
            "begins before its plan is reserved there, on disk. Free space or make the file writable, and repeat the command; "
            "what was already written to other copies of the ledger stays there. [replica-not-writable]"
        ) from error
    except GrewElsewhere as error:
        raise UserError(
            f"another process wrote to {path} while this one had locked it: keep the file on storage that supports locks. "
            "[replica-writers]"
        ) from error


def _chained(lines: list[dict[str, Any]], chain: str = "") -> Iterator[dict[str, Any]]:
    for line in lines:
        chain = link(chain, line)
        yield {**line, "chain": chain}


def _read(path: Path, mend: bool = False) -> tuple[BudgetLedger | None, str, int]:
    """Returns a replica, the hash of its last complete line, and the total length of its complete lines in bytes."""
    try:
        lines = read_lines(path)
    except FileNotFoundError:
        return None, "", 0
    except OSError as error:
        raise UserError(f"the budget's ledger {path} cannot be read: {error.strerror or error}. [replica-unread]") from error
    except DamagedLine as error:
        raise damaged(path, error.number) from None
    if mend:
        drop_torn_line(path, lines)  # no run began on the basis of a torn line
    parsed = list(_parsed(path, lines.entries))
    if not parsed:
        return None, "", lines.end
    head, chain = parsed[0][0], parsed[-1][1]
    entries = tuple(model for model, _ in parsed if isinstance(model, Entry))
    assert isinstance(head, Head)
    return BudgetLedger(head, entries), chain, lines.end


def _parsed(path: Path, lines: list[dict[str, Any]]) -> Iterator[tuple[Head | Entry, str]]:
    chain, orders = "", 0
    for number, line in enumerate(lines, start=1):
        claimed = line.pop("chain", None)
        chain = link(chain, line)
        try:
            model = (Head if number == 1 else Entry).model_validate(line)
        except ValidationError:
            model = None
        if isinstance(model, Head):
            orders = len(model.orders)
        if claimed != chain or model is None or (isinstance(model, Entry) and model.cost and len(model.cost) != orders):
            raise damaged(path, number)
        yield model, chain


def damaged(path: Path, number: int) -> UserError:
    """Returns the error for a damaged replica.

    Args:
        path: Path of the replica.
        number: Number of the first damaged line, from 1.
    """
    return UserError(
        f"the budget's ledger {path} is damaged at line {number}: what was spent is uncertain, so nothing more is spent. "
        "Restore it from a backup; or move it away, and check that `dpfed budget show` finds its other copy. [budget-damaged]"
    )
