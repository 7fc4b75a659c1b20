"""Where the results of an audit lie: in the run's directory, for the eyes of its owner only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.disclosures import AUDITED
from dpfed.files.atomic import make_folder, write_atomically


def keep(run: RunDirectory, name: str, result: dict[str, Any]) -> Path:
    """Writes ``RUN/audit/NAME.json``, readable by its owner only, in place of an older one; the card will say so."""
    run.disclose(AUDITED)
    make_folder(run.audits, mode=0o700)
    path = run.audits / f"{name}.json"
    write_atomically(path, json.dumps(result, indent=2, allow_nan=False) + "\n", mode=0o600)
    return path
