"""Reads what the report of a finished run shows from the run's directory."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import wrong_provenance
from dpfed.errors import UserError
from dpfed.evaluation.measured import wrong_fact
from dpfed.files.reading import read_text
from dpfed.privacy.epsilon_curve import spent_curve
from dpfed.privacy.ledger import Ledger
from dpfed.report.card import lead
from dpfed.report.gallery import Gallery
from dpfed.report.view import RunView

_NUMBER = (int, float)
_SPENT = (int, float, type(None))  # JSON has no infinity
_Kind = type | tuple[type, ...]


def read_view(folder: str | Path) -> RunView:
    """Reads the files that a report shows.

    These are results.json, config.toml and the privacy card (or no_privacy_card.md), and, if they exist, metrics.jsonl,
    ledger.jsonl, gallery/, privacy_audit.json and federation.jsonl.

    Raises:
        UserError: If there is no run, the run is not finished, or a file is missing or damaged; the message names the folder or
            the file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"there is no run at {folder}: expected a directory that `dpfed pretrain` wrote. [run-missing]")
    RunDirectory.open(folder)
    config_toml = text_of(folder / "config.toml")
    try:
        name = tomllib.loads(config_toml).get("name", folder.name)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{folder / 'config.toml'} is damaged ({error}): restore it. [run-config-damaged]") from error
    page = RunDirectory(folder).no_card if RunDirectory(folder).no_card.exists() else RunDirectory(folder).card
    card = text_of(page)
    try:
        lead(card)
    except UserError as error:
        raise UserError(f"{page} is damaged. It is {error.sentence} Restore it. [run-card-damaged]") from error
    pictures, ledger = folder / "gallery", RunDirectory(folder).ledger
    return RunView(
        name=str(name),
        folder=str(folder),
        config_toml=config_toml,
        results=results_in(folder / "results.json"),
        metrics=RunDirectory(folder).metric_lines(),
        card_markdown=card,
        spent=spent_curve(Ledger.open(ledger)) if ledger.exists() else [],
        gallery=Gallery.read(pictures) if pictures.is_dir() else None,
        audit=RunDirectory(folder).privacy_audit,
        steps_of_sites=RunDirectory(folder).federation_steps(),
    )


def text_of(path: Path) -> str:
    """Reads a text file of a run.

    Raises:
        UserError: If the file is missing, cannot be read, or is not UTF-8.
    """
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}; is the run finished? [run-file-unreadable]"
        ) from error


def results_in(path: Path) -> dict[str, Any]:
    """Reads and checks a results.json.

    Raises:
        UserError: If the file is missing or damaged.
    """
    results = _object(text_of(path), str(path))
    privacy, evaluations = results.get("privacy"), results.get("evaluations")
    if not isinstance(privacy, dict) or not _is(privacy.get("delta"), _NUMBER) or not _is(privacy.get("epsilon", ""), _SPENT):
        raise UserError(
            f"{path} is damaged: expected privacy.epsilon, a number or null, and privacy.delta, a number; restore it. "
            "[results-privacy]"
        )
    if not (0 < privacy["delta"] < 1 and (privacy["epsilon"] is None or 0 <= privacy["epsilon"] < math.inf)):
        raise UserError(
            f"{path} is damaged: expected privacy.epsilon of 0 or more (null: infinite) and privacy.delta between 0 and 1, got "
            f"{privacy['epsilon']} and {privacy['delta']}; restore it. [results-privacy-range]"
        )
    if not (_is(privacy.get("clip_norm", ""), _SPENT) and isinstance(privacy.get("clipping"), str)):
        raise UserError(
            f"{path} is damaged: expected privacy.clip_norm (number or null) and privacy.clipping (string); restore it. "
            "[results-clipping]"
        )
    made = results.get("run")
    named = isinstance(made, dict) and isinstance(made.get("id"), str) and isinstance(made.get("ledger"), str)
    if not named:
        raise UserError(f"{path} is damaged: 'run' lacks the run's id or the ledger's hash; restore it. [results-run-unnamed]")
    if (wrong := wrong_provenance(made)) is not None:
        raise UserError(f"{path} is damaged: in 'run', '{wrong}' is missing or malformed; restore it. [results-run-wrong]")
    if not isinstance(evaluations, list):
        raise UserError(
            f"{path} is damaged: 'evaluations' must be a list, got {type(evaluations).__name__}; restore it. [results-no-list]"
        )
    for number, item in enumerate(evaluations):
        if key := wrong_fact(item):
            raise UserError(f"{path} is damaged: evaluations[{number}] has no valid '{key}'; restore it. [results-fact-wrong]")
    return results


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where} is damaged: it is not JSON ({error}); restore it. [results-not-json]") from error
    if not isinstance(value, dict):
        raise UserError(
            f"{where} is damaged: expected a JSON object, got {type(value).__name__}; restore it. [results-not-object]"
        )
    return value


def _is(value: object, kind: _Kind) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
