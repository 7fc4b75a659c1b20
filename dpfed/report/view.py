"""The data of a finished or stopped run that its report shows."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpfed.privacy.epsilon_curve import EpsilonCurve
from dpfed.privacy.metrics_window import MetricsWindow
from dpfed.report.card import is_void, lead, marks_of
from dpfed.report.gallery import Gallery
from dpfed.report.results import Result, results_of


@dataclass(frozen=True)
class RunView:
    """The data of a run that a report needs.

    Attributes:
        name: Name of the run.
        folder: Directory of the run.
        config_toml: Resolved configuration.
        results: Contents of results.json: ``{"privacy": {"epsilon", "delta", "clip_norm", "clipping", ...}, "evaluations":
            [{"name", "value", "model", "split", "protocol", "step"}], "run": {"id", "ledger", ...}}``.
        metrics: Lines of metrics.jsonl, each with ``step``.
        card_markdown: Privacy card.
        spent: Pairs of a step and the epsilon after it, from the ledger; empty: the ledger's file is missing, no step was
            charged, or an epsilon is not finite.
        gallery: Pictures; only for public or generated records.
        audit: Result of attacks on the claim; ``None``: there were none.
        steps_of_sites: For each step of a federation, the last line about it in the journal; empty without a federation.
    """

    name: str
    folder: str
    config_toml: str
    results: dict[str, Any]
    metrics: list[dict[str, Any]]
    card_markdown: str
    spent: EpsilonCurve
    gallery: Gallery | None = None
    audit: dict[str, Any] | None = None
    steps_of_sites: Sequence[dict[str, Any]] = ()

    @property
    def epsilon(self) -> float:
        """The epsilon spent; infinity for a run without privacy."""
        spent = self.results["privacy"]["epsilon"]
        return math.inf if spent is None else float(spent)

    @property
    def delta(self) -> float:
        """Delta of the run's guarantee."""
        return float(self.results["privacy"]["delta"])

    @property
    def target(self) -> float | None:
        """The epsilon that the configuration sets; ``None`` if it sets the noise instead, or the run has no privacy."""
        return self._config.get("privacy", {}).get("epsilon")

    @property
    def noisy(self) -> bool:
        """Whether the steps had noise."""
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
        """The privacy card's statements that a reader must know besides the guarantee; see `marks_of`."""
        return marks_of(self.card_markdown)

    @property
    def about(self) -> str:
        """A line that identifies the run."""
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
    def windows(self) -> list[MetricsWindow]:
        """The released figures of training, if there are any."""
        return [MetricsWindow.read(line["phase"]) for line in self.metrics if "phase" in line]

    @property
    def clip_norm(self) -> float | None:
        """The clip norm C if it is fixed; otherwise ``None``."""
        privacy = self.results["privacy"]
        return privacy["clip_norm"] if privacy["clipping"] == "fixed" else None

    @property
    def noise_norm(self) -> float | None:
        """The approximate norm of the noise of a step, std sqrt(P) / divisor.

        Here std is the standard deviation of the noise on the sum, P the number of trained parameters, and divisor the number
        by which the noisy sum is divided. ``None``: the norm differs between steps, there is no noise, or a number is unknown.
        """
        privacy = self.results["privacy"]
        # Sites that share the noise may add more than the plan requires.
        carried = [line["noise_of_sites"] for line in self.steps_of_sites if line.get("noise_of_sites")]
        steady = privacy.get("clipping") == "fixed" and privacy.get("noise_std") and not privacy.get("progress")
        trained = privacy.get("trained_parameters")
        if not (steady and trained):
            return None
        std = math.sqrt(sum(part**2 for part in carried) / len(carried)) if carried else privacy["noise_std"]
        return std * math.sqrt(trained) / privacy["divisor"]

    @property
    def table(self) -> list[Result]:
        """The last figures of the trained model beside those of the untrained model."""
        return results_of(self.evaluations)
