"""A run, or a site of a federation, as its files show it at one moment. It needs no torch, and writes nothing."""

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
    """What is seen.

    Attributes:
        name: in the list of runs.
        title: that the configuration gives; of a site, its name.
        kind: such as ``one worker``, in words.
        finished: whether all is done.
        ledger: what was spent; ``None``: nothing yet.
        budget: the largest epsilon that a site agreed to, or that of the records' lifetime budget.
        lifetime: the lifetime budgets that hold the plan, in words, and what part of each is taken by all runs together.
        metrics: lines of metrics.jsonl.
        results: of a finished run, the evaluations of results.json.
        card: the privacy card, or the page of a run that gets none; empty: none yet.
        rounds: of a federation, the journal's last line about each step, in order.
        sites: of a federation, each with what it answered.
        arrival_log: when answers to the last steps came, while the run continues.
        model: whether a model is there.
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
        """What is planned."""
        return self.ledger.plan if self.ledger else None

    @property
    def planned(self) -> int:
        """T; 0: not known yet."""
        return self.plan.steps if self.plan else 0

    @property
    def done(self) -> int:
        """Steps that are over; a site's are those that it was asked for."""
        return self.ledger.last_step + 1 if self.ledger else 0

    @property
    def has_guarantee(self) -> bool:
        """Whether epsilon means anything: otherwise it is not shown."""
        if self.card:
            return not is_void(self.card)
        return self.plan is not None and self.plan.has_guarantee and not any(mark.voids for mark in self._marks)

    @property
    def epsilon(self) -> float | None:
        """Spent so far; ``None``: nothing is promised."""
        spent = self.ledger.epsilon if self.ledger and self.has_guarantee else math.inf
        return spent if math.isfinite(spent) else None

    @property
    def epsilon_planned(self) -> float | None:
        """Of all planned steps."""
        return self.ledger.plan.epsilon() if self.ledger and self.has_guarantee else None

    @property
    def spent(self) -> list[tuple[int, float]]:
        """Epsilon after some of the steps so far, and after the last one."""
        return spent_curve(self.ledger) if self.ledger and self.has_guarantee else []

    @property
    def expected(self) -> list[tuple[int, float]]:
        """Epsilon as it is planned to grow."""
        return planned_curve(self.plan) if self.plan and self.has_guarantee else []

    @property
    def evaluations(self) -> Sequence[dict[str, Any]]:
        """All figures that were measured."""
        return self.results or [line["evaluation"] for line in self.metrics if "evaluation" in line]

    @property
    def table(self) -> list[Result]:
        """The newest trained figures beside the untrained ones."""
        return results_of(list(self.evaluations))

    @property
    def windows(self) -> list[MetricsWindow]:
        """The released figures of training."""
        return [MetricsWindow.read(line["phase"]) for line in self.metrics if "phase" in line]

    def series(self, name: str) -> list[tuple[int, float]]:
        """A figure of metrics.jsonl over steps."""
        return [(line["step"], float(line[name])) for line in self.metrics if _is_number(line.get(name))]

    @property
    def discarded(self) -> list[tuple[int, str]]:
        """The steps of a federation that were discarded, and why."""
        return [(line["step"], str(line.get("reason", ""))) for line in self.rounds if line["event"] == "discarded"]

    @property
    def awaited(self) -> tuple[int, Step] | None:
        """The step that is open, or for which there are not enough sites yet, and who has answered it."""
        over = max((line["step"] for line in self.rounds if line["event"] != "opened"), default=-1)
        step = max(self.arrival_log, default=-1)
        return None if self.finished or step <= over or not self.arrival_log[step].awaited else (step, self.arrival_log[step])

    @property
    def guarantee(self) -> str:
        """What is promised, in words, or what is not."""
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
        """What a reader must know beside the guarantee."""
        return marks_of(self.card) if self.card else [mark.text for mark in self._marks if not mark.voids]

    @property
    def _marks(self) -> list[Mark]:
        return [FIXED_SEED] if self.ledger and self.ledger.marks.get("fixed_seed") else []


def is_run(folder: Path) -> bool:
    """Whether a run lies there, and not what only looks like one, such as a coordinator's folder."""
    return (folder / "config.toml").is_file() and (folder / ".lock").is_file() and not (folder / "identity.key").exists()


def is_site(folder: Path) -> bool:
    """Whether a site's folder lies there."""
    return (folder / SITE).is_file()


def read(folder: Path, name: str, running: bool) -> RunState:
    """Reads a run's or a site's folder.

    Args:
        folder: of a run or a site.
        name: in the list of runs.
        running: whether somebody works on it; otherwise times are those of a process that is gone.

    Raises:
        UserError: naming the file that is damaged.
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
        kind=f"a site among {others}, trust {terms['trust']}" if terms else "a site that has joined no federation",
        finished=bool(ledger and ledger.last_step + 1 >= ledger.plan.steps),
        ledger=ledger,
        budget=float(budget) if isinstance(budget, int | float) and _is_number(budget) else None,
    )


def _kind(terms: dict[str, Any], ledger: Ledger | None, simulated: bool) -> str:
    if terms:
        return f"{'simulated ' if simulated else ''}federation of {len(terms['sites'])} sites, trust {terms['trust']}"
    if ledger is None or not ledger.charged:
        return "before the first step"  # only then the ledger says how many workers there are
    world_size = ledger.world_size
    return f"cluster of {world_size} workers" if world_size > 1 else "one worker"


def _card(page: Path) -> str:
    try:
        text = read_text(page)
        lead(text)
    except (OSError, UnicodeDecodeError, UserError) as error:
        raise UserError(f"{page} is damaged: {getattr(error, 'sentence', error)} [watch-card-damaged]") from error
    return text


def _evaluations(path: Path) -> list[dict[str, Any]]:
    """The figures of results.json.

    Raises:
        UserError: if it is damaged.
    """
    try:
        items = json.loads(read_text(path))["evaluations"]
        wrong = [fact for fact in map(wrong_fact, items) if fact]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore it. [watch-figures-damaged]") from error
    if wrong:
        raise UserError(f"{path} is damaged: an evaluation has no valid '{wrong[0]}'. [watch-evaluation-wrong]")
    return items


def budget_files_outside(folder: Path) -> list[Path]:
    """Where the ledgers of a run's lifetime budgets may lie: other runs write into them.

    Raises:
        UserError: if the run's ``budget.json`` is damaged.
    """
    return [path for id, store in _budgets(RunDirectory(folder).budget) for path in replicas_of(id, store) if path]


def _budgets(path: Path) -> list[tuple[str, Path]]:
    """The ids of the budgets that a ``budget.json`` names, and the store that has their records."""
    if not path.is_file():
        return []
    try:
        noted = json.loads(read_text(path))
        return [(str(one["id"]), Path(noted["store"])) for one in noted["budgets"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore it. [watch-budget-damaged]") from error


def _terms(path: Path) -> dict[str, Any]:
    """Terms as far as they are shown; empty: there are none."""
    if not path.exists():
        return {}
    try:
        terms = json.loads(read_text(path))
        return {"trust": str(terms["trust"]), "sites": [{"name": str(site["name"])} for site in terms["sites"]]}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore it. [watch-terms-damaged]") from error


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): restore it. [watch-config-damaged]") from error


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
