"""Reads the state of a run, or of a federation's site, from its files. The module needs no torch, and writes nothing."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.budgets.refusals import shown
from dpfed.budgets.registry import known_by, replicas_of
from dpfed.errors import UserError
from dpfed.evaluation.measured import wrong_fact
from dpfed.files.reading import read_text
from dpfed.live.rounds import SiteRow, sites_of
from dpfed.privacy.epsilon_curve import planned_curve, spent_curve
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.metrics_window import MetricsWindow
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import meaning, round_up
from dpfed.protocol.journal import Step, read_arrival_log
from dpfed.report.card import is_void, lead, marks_of
from dpfed.report.facts import FIXED_SEED, Mark
from dpfed.report.results import Result, results_of

SITE = "site.toml"


@dataclass(frozen=True)
class RunState:
    """The state of a run or a site at one moment.

    Attributes:
        name: Name in the list of runs.
        title: Name of the run in its configuration; for a site, the site's name.
        kind: Kind of the run, such as ``one worker``.
        finished: Whether the run is finished.
        ledger: Ledger of the privacy spent; ``None``: the run has no ledger yet.
        budget: For a site, the largest epsilon that it agreed to; for a run, the smallest epsilon of the budgets in `lifetime`.
            ``None``: no such limit.
        lifetime: A pair for each lifetime budget in which this run has reserved something: a description of the
            budget, and the fraction of the budget that all runs together take.
        metrics: Lines of metrics.jsonl.
        results: Evaluations in results.json; empty until the run is finished.
        card: Text of the privacy card, or of the page that replaces it for a run without a guarantee; empty: not written yet.
        rounds: In a federation, the journal's last line about each step, in order.
        sites: In a federation, the sites with their answers.
        arrival_log: In a federation, arrival times of the answers to the last steps; empty if no process is working
            on the run.
        model: Whether the finished run has a model.
    """

    name: str
    title: str
    kind: str
    finished: bool = False
    ledger: Ledger | None = None
    budget: float | None = None
    lifetime: Sequence[tuple[str, float]] = ()
    metrics: Sequence[dict[str, Any]] = ()
    results: Sequence[dict[str, Any]] = ()
    card: str = ""
    rounds: Sequence[dict[str, Any]] = ()
    sites: Sequence[SiteRow] = ()
    arrival_log: dict[int, Step] = field(default_factory=dict)
    model: bool = False

    @property
    def plan(self) -> PrivacyPlan | None:
        """The plan; ``None``: not known yet."""
        return self.ledger.plan if self.ledger else None

    @property
    def planned(self) -> int:
        """T, the number of planned steps; 0: not known yet."""
        return self.plan.steps if self.plan else 0

    @property
    def done(self) -> int:
        """Number of steps done. For a site: number of the federation's steps up to the site's latest answer."""
        return self.ledger.last_step + 1 if self.ledger else 0

    @property
    def has_guarantee(self) -> bool:
        """Whether a guarantee holds; if none does, epsilon is not shown."""
        if self.card:
            return not is_void(self.card)
        return self.plan is not None and self.plan.has_guarantee and not any(mark.voids for mark in self._marks)

    @property
    def epsilon(self) -> float | None:
        """Epsilon spent so far; ``None``: there is no ledger yet, or no guarantee holds."""
        return self.ledger.promised_epsilon if self.ledger and self.has_guarantee else None

    @property
    def epsilon_planned(self) -> float | None:
        """Epsilon of all planned steps; ``None``: there is no ledger yet, or no guarantee holds."""
        return self.ledger.plan.epsilon() if self.ledger and self.has_guarantee else None

    @property
    def spent(self) -> list[tuple[int, float]]:
        """Pairs of a step and the epsilon spent by then, for some steps and for the latest; empty without a guarantee."""
        return spent_curve(self.ledger) if self.ledger and self.has_guarantee else []

    @property
    def expected(self) -> list[tuple[int, float]]:
        """Pairs of a step and the epsilon that the plan spends up to this step; empty without a guarantee."""
        return planned_curve(self.plan) if self.plan and self.has_guarantee else []

    @property
    def evaluations(self) -> Sequence[dict[str, Any]]:
        """All evaluations so far."""
        return self.results or [line["evaluation"] for line in self.metrics if "evaluation" in line]

    @property
    def table(self) -> list[Result]:
        """The newest figures of the trained model beside those of the untrained model."""
        return results_of(list(self.evaluations))

    @property
    def windows(self) -> list[MetricsWindow]:
        """The released training metrics."""
        return [MetricsWindow.read(line["phase"]) for line in self.metrics if "phase" in line]

    def series(self, name: str) -> list[tuple[int, float]]:
        """Returns pairs of a step and the value of a figure in metrics.jsonl."""
        return [(line["step"], float(line[name])) for line in self.metrics if _is_number(line.get(name))]

    @property
    def discarded(self) -> list[tuple[int, str]]:
        """The discarded steps of a federation, each with the reason."""
        return [(line["step"], str(line.get("reason", ""))) for line in self.rounds if line["event"] == "discarded"]

    @property
    def awaited(self) -> tuple[int, Step] | None:
        """The step that still waits for answers of sites, with the answers so far; ``None``: no step waits."""
        over = max((line["step"] for line in self.rounds if line["event"] != "opened"), default=-1)
        step = max(self.arrival_log, default=-1)
        return None if self.finished or step <= over or not self.arrival_log[step].awaited else (step, self.arrival_log[step])

    @property
    def guarantee(self) -> str:
        """The statement of the guarantee, or the reason why there is none."""
        if self.card:
            return lead(self.card)
        if self.ledger is None or self.epsilon is None or self.epsilon_planned is None:
            reasons = " ".join(mark.text for mark in self._marks if mark.voids)
            return f"No guarantee. {reasons}".strip() if self.ledger else "No step was taken yet."
        plan, delta = self.ledger.plan, round_up(self.ledger.plan.promise.delta)
        words = meaning(self.epsilon_planned, plan.promise.delta, plan.promise.protected, "what all planned steps release")
        return (
            f"So far ({round_up(self.epsilon)}, {delta})-differential privacy for each {plan.promise.protected}; "
            f"({round_up(self.epsilon_planned)}, {delta}) when all planned steps are done. {words}"
        )

    @property
    def marks(self) -> list[str]:
        """Remarks that a reader must know in addition to the guarantee."""
        return marks_of(self.card) if self.card else [mark.text for mark in self._marks if not mark.voids]

    @property
    def _marks(self) -> list[Mark]:
        return [FIXED_SEED] if self.ledger and self.ledger.marks.get("fixed_seed") else []


def is_run(folder: Path) -> bool:
    """Returns whether a folder holds a run; a coordinator's folder, which looks similar, does not."""
    return (folder / "config.toml").is_file() and (folder / ".lock").is_file() and not (folder / "identity.key").exists()


def is_site(folder: Path) -> bool:
    """Returns whether a folder is a site's."""
    return (folder / SITE).is_file()


def read(folder: Path, name: str, running: bool) -> RunState:
    """Reads a run's or a site's folder.

    Args:
        folder: Folder of a run or a site.
        name: Name in the list of runs.
        running: Whether a process is working on the run. If not, arrival times are ignored: a process that has ended wrote
            them.

    Raises:
        UserError: If a file is damaged; the message names it.
        OSError: If a file cannot be read, for example because it was deleted in the meantime.
    """
    return _site(folder, name) if is_site(folder) else _run(folder, name, running)


def _run(folder: Path, name: str, running: bool) -> RunState:
    run = RunDirectory(folder)
    config = _toml(folder / "config.toml")
    ledger = Ledger.open(run.ledger) if run.ledger.exists() and run.ledger.stat().st_size else None
    terms = _terms(run.terms)
    names = [str(site["name"]) for site in terms.get("sites", ())]
    rounds = run.federation_steps()
    arrival_log = read_arrival_log(run.arrival_log) if running and not run.finished else {}
    budgets = [budget for budget in (known_by(id, store) for id, store in _budgets(run.budget)) if budget is not None]
    page = next((page for page in (run.no_card, run.card) if page.exists()), None)
    return RunState(
        name=name,
        title=str(config.get("name", folder.name)),
        kind=_kind(terms, ledger, run.simulation.exists()),
        finished=run.finished,
        ledger=ledger,
        budget=min((budget.filter.epsilon for budget in budgets), default=None),
        lifetime=[(shown(budget), budget.filter.part(budget.spent)) for budget in budgets],
        metrics=run.metric_lines(),
        results=_evaluations(run.results) if run.finished else (),
        card=_card(page) if page else "",
        rounds=rounds,
        sites=sites_of(names, rounds, arrival_log),
        arrival_log=arrival_log,
        model=run.finished and run.model.is_dir(),
    )


def _site(folder: Path, name: str) -> RunState:
    settings, terms = _toml(folder / SITE), _terms(folder / "terms.json")
    path, budget = folder / "ledger.jsonl", settings.get("budget")
    ledger = Ledger.open(path) if path.exists() and path.stat().st_size else None
    others = len(terms.get("sites", ()))
    return RunState(
        name=name,
        title=str(settings.get("name", folder.name)),
        kind=f"one of {others} sites, trust {terms['trust']}" if terms else "a site that has joined no federation",
        finished=bool(ledger and ledger.last_step + 1 >= ledger.plan.steps),
        ledger=ledger,
        budget=float(budget) if isinstance(budget, int | float) and _is_number(budget) else None,
    )


def _kind(terms: dict[str, Any], ledger: Ledger | None, simulated: bool) -> str:
    if terms:
        return f"{'simulated ' if simulated else ''}federation of {len(terms['sites'])} sites, trust {terms['trust']}"
    if ledger is None or not ledger.charged:
        return "before the first step"  # the ledger states the number of workers only after it
    world_size = ledger.world_size
    return f"cluster of {world_size} workers" if world_size > 1 else "one worker"


def _card(page: Path) -> str:
    try:
        text = read_text(page)
        lead(text)
    except (OSError, UnicodeDecodeError, UserError) as error:
        raise UserError(
            f"{page} is damaged ({str(getattr(error, 'sentence', error)).rstrip('.')}): restore this file. [watch-card-damaged]"
        ) from error
    return text


def _evaluations(path: Path) -> list[dict[str, Any]]:
    """Reads the evaluations of results.json.

    Raises:
        UserError: If the file is damaged.
    """
    try:
        items = json.loads(read_text(path))["evaluations"]
        wrong = [fact for fact in map(wrong_fact, items) if fact]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore this file. [watch-figures-damaged]") from error
    if wrong:
        raise UserError(
            f"{path} is damaged: an evaluation has no valid '{wrong[0]}'; restore this file. [watch-evaluation-wrong]"
        )
    return items


def budget_files_outside(folder: Path) -> list[Path]:
    """Returns paths where the ledgers of a run's lifetime budgets may be. Other runs also write them.

    Raises:
        UserError: If the run's ``budget.json`` is damaged.
    """
    return [path for id, store in _budgets(RunDirectory(folder).budget) for path in replicas_of(id, store) if path]


def _budgets(path: Path) -> list[tuple[str, Path]]:
    """Returns the id of each budget in a ``budget.json``, with the store of its records."""
    if not path.is_file():
        return []
    try:
        noted = json.loads(read_text(path))
        return [(str(budget["id"]), Path(noted["store"])) for budget in noted["budgets"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore this file. [watch-budget-damaged]") from error


def _terms(path: Path) -> dict[str, Any]:
    """Returns the part of a federation's terms that is shown: trust mode and names of the sites; empty without terms."""
    if not path.exists():
        return {}
    try:
        terms = json.loads(read_text(path))
        return {"trust": str(terms["trust"]), "sites": [{"name": str(site["name"])} for site in terms["sites"]]}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore this file. [watch-terms-damaged]") from error


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore this file. [watch-config-damaged]") from error


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
