"""Checks that a card, a run's ledger, its plan and its model belong together, for the recipient of a model.

These files are neither secret nor signed: a person who can write all of them can forge a set that passes every check. The
checks detect a card that was edited, a ledger that lost a line, and a card, results.json or weights that belong to another run.

This module also compares the number of a ledger's charged steps with all other files of the run that name steps: results.json,
checkpoints, kept releases, commits, metrics.jsonl and federation.jsonl. Each line of a ledger has a hash that depends on the
lines before, so a line that was changed, or removed from the middle, is detected. If the last lines were removed, the ledger
itself shows no trace; the other files reveal the removal.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import LEDGER, MODEL
from dpfed.artifacts.view import results_in
from dpfed.building.plan import describes
from dpfed.errors import UserError
from dpfed.files.json_lines import DamagedLine, read_lines
from dpfed.files.reading import read_bytes, read_text
from dpfed.models.folder import weights_digest
from dpfed.paths import local_path
from dpfed.privacy.ledger import Artifacts, Ledger
from dpfed.report.card import card_digest, table_rows


def _latest(folder: Path, names: str) -> int:
    """Returns the largest step that a file of a folder has in its name; 0: the folder has no such file.

    Args:
        folder: Folder, which need not exist.
        names: Regular expression of the names, with the step as its first group. Other files, such as those that file managers
            leave, do not count.
    """
    found = (re.fullmatch(names, path.name) for path in (folder.iterdir() if folder.is_dir() else ()))
    return max((int(match[1]) for match in found if match), default=0)


def ledger_of(run: RunDirectory) -> Ledger:
    """Reads the ledger of a run, and checks against the run's other files that no line is missing.

    Raises:
        UserError: If the ledger is missing or damaged, has fewer steps than another file of the run shows, or has lost its
            line about the card; also if results.json has no valid number of charged steps.
    """
    results = _readable_results(run)
    said = results.get("privacy", {}).get("steps_charged", 0)
    witnesses = {  # before the ledger, which has every charge first: a run may go on meanwhile
        "a checkpoint is of step {}": _latest(run.checkpoints, r"step-(\d+)\.safetensors"),
        "a release of step {} is kept": _latest(run.releases, r"(\d+)-[0-9a-f]+\.f32"),
        "a commit is of step {}": _latest(run.commits, r"(\d+)\.state"),
        "metrics.jsonl has a line of step {}": _last_step(run.metrics),
        "federation.jsonl has a line of step {}": _last_step(run.journal),
    }
    ledger = Ledger.open(run.ledger)
    if type(said) is not int:  # such as NaN: compared with NaN, no ledger is too short
        raise UserError(f"{run.results}: privacy.steps_charged must be an integer, got {said!r}. Restore it. [results-steps]")
    witnesses = {"results.json says {}": said, **witnesses}
    for witness, steps in witnesses.items():
        # Steps are counted from 0, so a release that is kept before its charge may have the number of the charged steps.
        if steps > ledger.charged:
            last = f"it ends after {ledger.charged:,} charged step{'s' * (ledger.charged != 1)}"
            raise _lost(run, f"{last}, and {witness.format(f'{steps:,}')}")
    if results.get("run", {}).get("ledger") and ledger.artifacts is None:
        raise _lost(run, "results.json shows that a card was written, but the ledger's line with the card's hash is missing")
    return ledger


def _last_step(path: Path) -> int:
    """Returns the largest step that a line of a file names; 0 if the file is damaged, which its own reader reports."""
    try:
        lines = read_lines(path).entries
    except (OSError, DamagedLine):
        return 0
    return max((line["step"] for line in lines if type(line.get("step")) is int), default=0)


def _readable_results(run: RunDirectory) -> dict[str, Any]:
    """Returns those parts of results.json that can be read; functions that need other parts of the file report its damage."""
    try:
        results = json.loads(read_text(run.results))
    except (OSError, ValueError):
        return {}
    parts = {name: results.get(name) for name in ("privacy", "run")} if isinstance(results, dict) else {}
    return {name: part for name, part in parts.items() if isinstance(part, dict)}


def _lost(run: RunDirectory, why: str) -> UserError:
    return UserError(f"{run.ledger} has lost lines: {why}. Restore it; no card is written without them. [run-ledger-short]")


@dataclass(frozen=True)
class Check:
    """The result of one comparison.

    Attributes:
        what: Statement that holds if the check passes.
        wrong: Explanation of the failure, for people; "": the check passes.
    """

    what: str
    wrong: str = ""


def verify(card: str | Path, folder: str | Path) -> list[Check]:
    """Compares a privacy card with the run that it claims to belong to.

    Args:
        card: File of the card: the run's own, or a copy.
        folder: Directory of the run, with its ledger, config.toml, results.json and model.

    Returns:
        The results of all comparisons, passed or failed.

    Raises:
        UserError: If the card, the ledger, config.toml or results.json cannot be read, or the ledger names no card yet. For a
            damaged ledger the message has the number of the line; for a shortened ledger it has the evidence of the lost lines.
    """
    path, other = local_path(card, "the card"), local_path(folder, "the run")
    if path.is_dir() and other.is_file():
        raise UserError(
            f"{path} is a folder, and {other} a file: give the card first, and then the run. [run-card-swapped]",
            command=f"`dpfed privacy verify {shlex.quote(str(other))} {shlex.quote(str(path))}`",
        )
    run = RunDirectory.open(folder)
    try:
        text = read_bytes(path).decode()  # with its line ends: the digest covers every byte
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}. [run-card-unreadable]") from error
    ledger, stated = ledger_of(run), table_rows(text)
    if ledger.artifacts is None:
        raise UserError(f"{run.ledger} names no card: the run is not finished. [run-card-unnamed]")
    return [
        Check("every line of the ledger follows from the line before"),  # otherwise `Ledger.open` would have raised
        _same("the card is the one that the ledger names", "its hash is", card_digest(text), ledger.artifacts.card),
        _same("the card states the ledger's hash", "it says", stated.get(LEDGER), ledger.head),
        _plan(run, ledger),
        _results(run, ledger),
        _model(run, stated.get(MODEL), ledger.artifacts),
    ]


def _same(what: str, verb: str, stated: str | None, wanted: str) -> Check:
    return Check(what, "" if stated == wanted else f"{verb} {stated or 'nothing'}, but the ledger has {wanted}")


def _plan(run: RunDirectory, ledger: Ledger) -> Check:
    config = run.config()
    try:
        wrong = "" if describes(config, ledger.plan) else "config.toml asks for another mechanism"
    except UserError as error:
        wrong = f"config.toml allows no such plan. {error}"
    return Check("the plan of the ledger is that of config.toml", wrong)


def _results(run: RunDirectory, ledger: Ledger) -> Check:
    results = results_in(run.results)
    said = results["privacy"] | {"ledger": (results.get("run") or {}).get("ledger", ledger.head)}
    right = {"steps_charged": ledger.charged, "epsilon": ledger.promised_epsilon, "ledger": ledger.head}
    wrong = [f"{key} {said.get(key)}, but the ledger has {value}" for key, value in right.items() if said.get(key) != value]
    return Check("results.json says what was spent", wrong and f"results.json says {wrong[0]}" or "")


def _model(run: RunDirectory, stated: str | None, artifacts: Artifacts) -> Check:
    what = "the model has the weights that card and ledger name"
    try:
        digest = weights_digest(run.model)
    except UserError as error:
        return Check(what, str(error))
    if digest != artifacts.model:
        return Check(what, f"the weights have the hash {digest}, and the ledger names {artifacts.model}")
    return _same(what, "the card says", stated, artifacts.model)
