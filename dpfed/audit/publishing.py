"""Audits the claim of a configuration or of a run, and writes the result into a file, and into the run's card and report."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.resuming import resuming_command
from dpfed.artifacts.view import results_in
from dpfed.audit.findings import CERTAINTY, CONFIDENCE, EXPERIMENTS, PrivacyAudit
from dpfed.audit.privacy import audit_claim
from dpfed.config import Config
from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically
from dpfed.paths import local_path
from dpfed.privacy.ledger import Ledger
from dpfed.progress import Progress, Silent
from dpfed.runs.build import build
from dpfed.runs.outcome import rewrite_artifacts
from dpfed.runs.preflight import known_plan, refuse_too_many_ranks

_WAIT = 30.0  # seconds to wait for another process that writes its results


def audit_config(
    config: Config, folder: Path, world_size: int = 1, experiments: int = EXPERIMENTS, progress: Progress | None = None
) -> tuple[Path, PrivacyAudit]:
    """Audits the mechanism that a configuration describes.

    Args:
        config: Configuration of a run, which need not exist.
        folder: Folder for the file of the result; it is created if it is missing.
        world_size: Number of workers that share the work.
        experiments: Approximate number of repeated experiments, see `audit_claim`.
        progress: Display of the stages; default: none.

    Returns:
        Path of the file, and its content.

    Raises:
        UserError: If the plan is impossible, claims no privacy, draws no Poisson samples or has fewer groups than workers; if
            the records are missing or unfit, or their number is known only after an import; or if the folder cannot be created
            or written.
    """
    plan = known_plan(config, progress, world_size)
    if plan is None:
        raise UserError(
            f"the number of records of data.source = '{config.data.source}' is known only after an import, and the plan "
            "depends on it: import the records (`dpfed data import`), and set data.source = 'store', and data.path to the new "
            "store. [audit-records-unknown]"
        )
    folder = local_path(folder, "--out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the folder {folder} for the audit cannot be made: {error.strerror or error}. Give another folder, --out FOLDER. "
            "[audit-folder]"
        ) from error
    _require_writable(folder)
    audit = audit_claim(config, plan, world_size, experiments, progress)
    return _write(folder, audit), audit


def audit_run(
    folder: Path, world_size: int = 1, experiments: int = EXPERIMENTS, progress: Progress | None = None
) -> tuple[Path, PrivacyAudit]:
    """Audits the mechanism of a finished run, and adds the result to the run's card and report.

    Args:
        folder: Directory of the run.
        world_size: Number of workers that share the work.
        experiments: Approximate number of repeated experiments, see `audit_claim`.
        progress: Display of the stages; default: none.

    Returns:
        Path of the file, and its content.

    Raises:
        UserError: If there is no run, it is unfinished, belongs to a federation or has parts that were passed in Python; if the
            run claims no privacy, draws no Poisson samples or has fewer groups than workers; if its claim was contradicted
            before; if its records are no longer at their path, because the card and report are made anew from them; if its
            folder cannot be written, or another process holds the run.
    """
    run, progress = RunDirectory.open(folder), progress or Silent()
    if not run.finished:
        raise UserError(f"{folder} is not finished: {resuming_command(run)} finishes it; or audit its config. [audit-early]")
    if run.terms.is_file():
        raise UserError(f"{folder} is the run of a federation, whose sites are not attacked: audit its config. [audit-sites]")
    if (before := run.privacy_audit) is not None and before["contradicted"]:
        raise UserError(
            f"an audit of {before['day']} contradicted the claim of {folder}, and no later audit of the run undoes that. To "
            f"examine the mechanism further, audit {folder / 'config.toml'}, whose result goes elsewhere. [audit-contradicted]"
        )
    config, plan = run.config(), Ledger.open(run.ledger).plan
    _require_writable(run.path)
    results = results_in(run.results)
    parts = build(config, progress=progress)
    refuse_too_many_ranks(plan, world_size)
    audit = audit_claim(config, plan, world_size, experiments, progress)
    with run.locked(wait=_WAIT):
        path = _write(run.path, audit)
        if audit.contradicted:
            results["privacy"]["guarantee"] = False
            run.write(run.results, json.dumps(results, indent=2, allow_nan=False) + "\n")
        rewrite_artifacts(run, parts, results)
    return path, audit


def _require_writable(folder: Path) -> None:
    """Refuses a folder that cannot be written, before minutes of work."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"the audit cannot write its result into {folder}: make the folder writable, or audit a configuration with --out "
            "FOLDER. [audit-not-writable]"
        )


def as_json(audit: PrivacyAudit) -> dict[str, Any]:
    """Returns the content of the audit's file: numbers that are not finite become null; `world_size` is named ``owners``."""
    facts = {"owners" if name == "world_size" else name: value for name, value in dataclasses.asdict(audit).items()} | {
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "shown": audit.shown,
        "contradicted": audit.contradicted,
        "confidence": CONFIDENCE,
        "certainty": CERTAINTY,
    }
    return _finite(facts) | {"findings": [_finite(finding) for finding in facts["findings"]]}


def _finite(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in facts.items()}


def _write(folder: Path, audit: PrivacyAudit) -> Path:
    path = folder / RunDirectory.PRIVACY_AUDIT
    write_atomically(path, json.dumps(as_json(audit), indent=2, allow_nan=False) + "\n")
    return path
