"""A finished or stopped run as its report sees it, read from the run's directory."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import wrong_provenance
from dpfed.errors import UserError
from dpfed.evaluation.measured import wrong_fact
from dpfed.files.reading import read_text
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.phase import Curve, Phase, spent_curve
from dpfed.report.card import is_void, lead, marks_of
from dpfed.report.gallery import Gallery
from dpfed.report.results import Result, results_of

_NUMBER = (int, float)
_SPENT = (int, float, type(None))  # JSON has no infinity
_Kind = type | tuple[type, ...]


@dataclass(frozen=True)
class RunView:
    """What a report needs of a run.

    Attributes:
        name: of the run.
        folder: the run's directory.
        config_toml: the resolved configuration.
        results: results.json: ``{"privacy": {"epsilon", "delta", "clip_norm", "clipping", ...}, "evaluations": [{"name",
            "value", "model", "split", "protocol", "step"}], "run": {"id", "ledger", ...}}``.
        metrics: lines of metrics.jsonl, each with ``step``.
        card_markdown: the privacy card.
        spent: epsilon over steps, from the ledger; empty: its file is not there.
        gallery: pictures; only for public or generated records.
        audit: what attacks on the claim showed, if there were any.
        steps_of_sites: of a federation, the journal's last line about each step.
    """

    name: str
    folder: str
    config_toml: str
    results: dict[str, Any]
    metrics: list[dict[str, Any]]
    card_markdown: str
    spent: Curve
    gallery: Gallery | None = None
    audit: dict[str, Any] | None = None
    steps_of_sites: Sequence[dict[str, Any]] = ()

    @property
    def epsilon(self) -> float:
        """Privacy spent; infinity for a run without privacy."""
        spent = self.results["privacy"]["epsilon"]
        return math.inf if spent is None else float(spent)

    @property
    def delta(self) -> float:
        """Delta of the promise."""
        return float(self.results["privacy"]["delta"])

    @property
    def target(self) -> float | None:
        """Epsilon that the configuration asks for, None where it gives the noise instead."""
        return self._config.get("privacy", {}).get("epsilon")

    @property
    def noisy(self) -> bool:
        """Whether the steps had noise at all."""
        return self._config.get("bounding", {}).get("method") != "none"

    @property
    def closed_form(self) -> bool:
        """Whether the model follows in closed form from two noisy sums, without gradients."""
        return self._config.get("bounding", {}).get("method") == "moments"

    @property
    def _config(self) -> dict[str, Any]:
        return tomllib.loads(self.config_toml)

    @property
    def void(self) -> bool:
        """Whether the privacy card says that no guarantee holds."""
        return is_void(self.card_markdown)

    @property
    def guarantee(self) -> str:
        """The sentence of the privacy card that states the guarantee, or why there is none."""
        return lead(self.card_markdown)

    @property
    def marks(self) -> list[str]:
        """What a reader must know beside the guarantee."""
        return marks_of(self.card_markdown)

    @property
    def about(self) -> str:
        """Which run this is, in a line."""
        made = self.results["run"]
        last = made["environments"][-1]
        code = f"dpfed {last['versions']['dpfed']}" + (f" at {last['commit'][:12]}" if last["commit"] else "")
        if last["commit"] and last["commit"].endswith("-dirty"):
            code += " (changed)"
        mark = made["data"]["fingerprint"]
        data = f"{made['data']['name']} ({mark})" if mark else made["data"]["name"]
        return f"{data} · run {made['id']} · ledger {made['ledger']} · began {made['began']} · {code} · {last['hardware']}"

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """All measured figures."""
        return self.results["evaluations"]

    @property
    def phases(self) -> list[Phase]:
        """The released figures of training, where there are any."""
        return [Phase.read(line["phase"]) for line in self.metrics if "phase" in line]

    @property
    def clip_norm(self) -> float | None:
        """C, where gradients are clipped to one that stays."""
        privacy = self.results["privacy"]
        return privacy["clip_norm"] if privacy["clipping"] == "fixed" else None

    @property
    def noise_norm(self) -> float | None:
        """The norm of a step's noise, very nearly: std sqrt(P) / divisor; ``None`` where it changes from step to step."""
        privacy = self.results["privacy"]
        # Sites that share the noise out may add more than the plan asks for.
        carried = [line["noise_of_sites"] for line in self.steps_of_sites if line.get("noise_of_sites")]
        steady = privacy.get("clipping") == "fixed" and privacy.get("noise_std") and not privacy.get("progress")
        trained = privacy.get("trained_parameters")
        if not (steady and trained):
            return None
        std = math.sqrt(sum(one**2 for one in carried) / len(carried)) if carried else privacy["noise_std"]
        return std * math.sqrt(trained) / privacy["divisor"]

    @property
    def table(self) -> list[Result]:
        """The last trained beside the untrained figures."""
        return results_of(self.evaluations)

    @classmethod
    def read(cls, folder: str | Path) -> RunView:
        """Reads results.json, metrics.jsonl, config.toml, privacy_card.md and, if they are there, ledger.jsonl and gallery/.

        Raises:
            UserError: for a missing or damaged file; the message names it.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise UserError(f"there is no run at {folder}: expected a directory that `dpfed pretrain` wrote. [run-missing]")
        RunDirectory.open(folder)
        config_toml = _text(folder / "config.toml")
        try:
            name = tomllib.loads(config_toml).get("name", folder.name)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{folder / 'config.toml'} is damaged: {error}. [run-config-damaged]") from error
        page = RunDirectory(folder).no_card if RunDirectory(folder).no_card.exists() else RunDirectory(folder).card
        card = _text(page)
        try:
            lead(card)
        except UserError as error:
            raise UserError(f"{page} is damaged: {error.sentence} [run-card-damaged]") from error
        pictures, ledger = folder / "gallery", RunDirectory(folder).ledger
        return cls(
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


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}; is the run finished? [run-file-unreadable]"
        ) from error


def results_in(path: Path) -> dict[str, Any]:
    """What a results.json holds.

    Raises:
        UserError: if it is missing or damaged.
    """
    results = _object(_text(path), str(path))
    privacy, evaluations = results.get("privacy"), results.get("evaluations")
    if not isinstance(privacy, dict) or not _is(privacy.get("delta"), _NUMBER) or not _is(privacy.get("epsilon", ""), _SPENT):
        raise UserError(f"{path} is damaged: expected numbers privacy.epsilon (or null) and privacy.delta. [results-privacy]")
    if not (0 < privacy["delta"] < 1 and (privacy["epsilon"] is None or 0 <= privacy["epsilon"] < math.inf)):
        raise UserError(
            f"{path} is damaged: expected privacy.epsilon of 0 or more (null: infinite) and privacy.delta between 0 and 1, got "
            f"{privacy['epsilon']} and {privacy['delta']}. [results-privacy-range]"
        )
    if not (_is(privacy.get("clip_norm", ""), _SPENT) and isinstance(privacy.get("clipping"), str)):
        raise UserError(
            f"{path} is damaged: expected privacy.clip_norm (number or null) and privacy.clipping (word). [results-clipping]"
        )
    made = results.get("run")
    named = isinstance(made, dict) and isinstance(made.get("id"), str) and isinstance(made.get("ledger"), str)
    if not named or wrong_provenance(made) is not None:
        raise UserError(f"{path} is damaged: 'run' does not say which run it is. [results-run-unnamed]")
    if not isinstance(evaluations, list):
        raise UserError(f"{path} is damaged: 'evaluations' must be a list, got {type(evaluations).__name__}. [results-no-list]")
    for number, item in enumerate(evaluations):
        if key := wrong_fact(item):
            raise UserError(f"{path} is damaged: evaluations[{number}] has no valid '{key}'. [results-fact-wrong]")
    return results


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where} is damaged: it is not JSON ({error}). [results-not-json]") from error
    if not isinstance(value, dict):
        raise UserError(f"{where} is damaged: expected an object, got {type(value).__name__}. [results-not-object]")
    return value


def _is(value: object, kind: _Kind) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
