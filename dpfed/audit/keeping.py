"""Where the results of an audit lie: in the run's directory, for the eyes of its owner only."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dpfed.runs.directory import RunDirectory
from dpfed.runs.disclosures import AUDITED


def keep(run: RunDirectory, name: str, result: dict[str, Any]) -> Path:
    """Writes ``RUN/audit/NAME.json``, readable by its owner only, in place of an older one; the card will say so."""
    run.disclose(AUDITED)
    folder = run.audits
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.json"
    draft = folder / f".{name}.partial"
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(result, file, indent=2, allow_nan=False)
        file.write("\n")
    os.replace(draft, path)
    return path
