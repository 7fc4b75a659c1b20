"""What a run spent: its ledger, held against everything else in the run's folder that knows of steps.

Every line of a ledger follows from the line before, so a changed line is noticed, and one that is gone from the middle. The
last lines can be taken away without a trace in the file itself. Checkpoints, kept releases and results.json tell of them.
"""

from __future__ import annotations

import json
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.errors import UserError
from dpfed.files.reading import read_text
from dpfed.privacy.ledger import Ledger


def ledger_of(run: RunDirectory) -> Ledger:
    """The ledger of a run, of which no line is missing as far as the run's other files tell.

    Raises:
        UserError: if it is missing, damaged, or shorter than it was.
    """
    ledger = Ledger.open(run.ledger)
    results = _results(run)
    said = results.get("privacy", {}).get("steps_charged", 0)
    if type(said) is not int:  # such as NaN, beside which no ledger is too short
        raise UserError(f"{run.results} is damaged: expected a whole number privacy.steps_charged, got {said!r}. Restore it.")
    witnesses = {
        "results.json says {}": said,
        "a checkpoint is of step {}": max(map(_number, run.checkpoints.glob("step-*.safetensors")), default=0),
        "a release of step {} is kept": max((int(path.name.split("-")[0]) for path in run.releases.glob("0*.f32")), default=0),
    }
    for witness, steps in witnesses.items():
        if steps > ledger.charged:  # the next release is kept before it is paid for: its step, from 0, is the number of lines
            raise _lost(run, f"charged steps in it: {ledger.charged:,}, and {witness.format(f'{steps:,}')}")
    if results.get("run", {}).get("ledger") and ledger.papers is None:
        raise _lost(run, "results.json names its hash, and the line that names the card is gone")
    return ledger


def _results(run: RunDirectory) -> dict[str, Any]:
    """What results.json holds, as far as it can be read: who needs more of it says what is wrong with it."""
    try:
        results = json.loads(read_text(run.results))
    except (OSError, ValueError):
        return {}
    parts = {name: results.get(name) for name in ("privacy", "run")} if isinstance(results, dict) else {}
    return {name: part for name, part in parts.items() if isinstance(part, dict)}


def _number(checkpoint: Any) -> int:
    return int(checkpoint.stem.removeprefix("step-"))


def _lost(run: RunDirectory, why: str) -> UserError:
    return UserError(
        f"the ledger {run.ledger} has lost lines: {why}. Restore it from a backup; no card is written without them."
    )
