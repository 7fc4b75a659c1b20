"""Predicts a private run from its plan and from gradients measured on public records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpfed.building.model import trained_of
from dpfed.config import Config
from dpfed.data.memory import memory_of
from dpfed.errors import UserError
from dpfed.models.options import PROCEDURAL
from dpfed.models.starting import MissingStart
from dpfed.planning.gradient_signal import Signal, measured
from dpfed.planning.plan_grid import Row, finite, grid
from dpfed.planning.proxy import Proxy
from dpfed.planning.simulated import SimulatedRun
from dpfed.privacy.plan import PrivacyPlan
from dpfed.progress import Progress, Silent
from dpfed.runs.memory import needs_of
from dpfed.runs.resolution import resolve_defaults
from dpfed.runs.starts import starting_weights

ENOUGH, SOME = 20.0, 8.0  # reach at which a run can work, and at which it learns a little; see docs/recipes.md
_RECORDS = 1_000  # largest number of public records that are measured
_BUDGET = 24.0  # approximate time for all gradients, in seconds

Verdict = Literal["can work", "will learn little", "will not work"]


@dataclass(frozen=True)
class Forecast:
    """The prediction for a private run.

    Attributes:
        name: Name of the configuration.
        rows: Plans with their figures: first the configured plan, then plans with one number changed, then the best combination
            of changes.
        signal: Gradient signal of the configured plan.
        epsilon: Epsilon of the configured plan.
        trained: Description of the trained parts of the model.
        measured_on: Description of the public records on which gradients were measured.
        records_needed: Number of private records (or units) that would suffice for the verdict ``can work``, at the same
            sampling rate and noise multiplier; ``None`` if no number would.
        memory: Least memory that training needs, in bytes; ``None`` if it is not known.
        memory_there: Largest memory that training can have on its device, in bytes.
        remarks: Remarks about the measurement.
    """

    name: str
    rows: Sequence[Row]
    signal: Signal
    epsilon: float
    trained: str
    measured_on: str
    records_needed: int | None
    memory: int | None
    memory_there: int
    remarks: Sequence[str]

    @property
    def configured(self) -> Row:
        """The figures of the configured plan, the first of `rows`."""
        return self.rows[0]

    @property
    def verdict(self) -> Verdict:
        """Judgement of the configured plan, from its reach (`dpfed.planning.plan_grid`)."""
        reach = self.configured.reach
        return "can work" if reach >= ENOUGH else "will learn little" if reach >= SOME else "will not work"

    def facts(self) -> dict[str, Any]:
        """Returns the forecast as values for JSON."""
        plan = self.configured.plan
        return {
            "name": self.name,
            "verdict": self.verdict,
            "records": plan.sampling.records,
            "epsilon": self.epsilon,
            "delta": plan.promise.delta,
            "accountant": plan.promise.accountant,
            "sampling_rate": plan.sampling.rate,
            "groups": plan.groups,
            "configured": self.configured.facts(),
            "grid": [row.facts() for row in self.rows[1:]],
            "signal": {**dataclasses.asdict(self.signal), "error": finite(self.signal.error)},
            "records_needed": self.records_needed,
            "measured_on": self.measured_on,
            "memory": self.memory,
            "memory_there": self.memory_there,
            "remarks": list(self.remarks),
        }


def forecast(config: Config, plan: PrivacyPlan, stand: Proxy, progress: Progress | None = None) -> Forecast:
    """Measures gradients on public records, and predicts noise, progress, time and memory of the private run.

    Args:
        config: Configuration of the private run.
        plan: Plan of the private run (`dpfed.planning.proxy.declared_plan`).
        stand: Public records that replace the private ones (`dpfed.planning.proxy.chosen`).
        progress: Receiver of progress notes.

    Raises:
        UserError: If the run cannot be built over the public records; see `dpfed.runs.build.build`.
    """
    progress = progress or Silent()
    config, remarks = _with_a_start(config)
    progress.note(f"opening {stand.title}")
    simulated = SimulatedRun.of(config, plan, stand, stand.at_most(_RECORDS), progress)
    parts = simulated.parts
    if plan.promise.unit == "user" and parts.plan.promise.unit == "record":
        remarks.append(f"{stand.title}: no units are named, so each record counts as its own unit")
    configured, most = plan.bounding.group_size, min(plan.sampling.batch, simulated.protected // 2)
    others = () if plan.bounding.method.public_records else (configured // 2, 2 * configured)
    sizes = [configured, *(size for size in others if 2 <= size <= most)]
    budget = _BUDGET / len(sizes)
    progress.note(f"measuring gradients of groups of {', '.join(map(str, sizes))}")
    signals = {size: measured(simulated, plan.replace(group_size=size), budget) for size in sizes}
    signal = signals[plan.bounding.group_size]
    rows = [Row.of("as configured", plan, signal)]
    progress.note("computing the noise for other batches, steps and epsilons")
    epsilon = plan.epsilon()
    rows += grid(plan, signals, config.optimizer.warmup, epsilon, rows[0].seconds)
    if math.isinf(signal.error):
        remarks.append(f"the gradients of {signal.groups} groups have no measurable direction in common")
    elif signal.error > 0.3:
        remarks.append(f"the gradient is measured on {signal.groups} groups only, with a standard error of {signal.error:.0%}")
    return Forecast(
        name=config.name,
        rows=rows,
        signal=signal,
        epsilon=epsilon,
        trained=str(trained_of(parts.model, parts.config)),
        measured_on=f"{signal.groups} groups of {stand.title}",
        records_needed=_records_needed(rows[0]),
        memory=_memory(parts.config),
        memory_there=memory_of(parts.learner.device),
        remarks=remarks,
    )


def _with_a_start(config: Config) -> tuple[Config, list[str]]:
    """Returns the configuration to measure, and remarks about it.

    If the starting weights come from procedural images and do not exist yet, the configuration to measure goes without them.
    """
    if config.model.start != PROCEDURAL:
        return config, []
    try:
        starting_weights(resolve_defaults(config))
    except MissingStart:
        model = config.model.model_copy(update={"start": None})
        remark = (
            "there is no procedural initialisation yet (`dpfed start` makes it from generated images), so gradients were "
            "measured at random weights, which is less reliable"
        )
        return config.model_copy(update={"model": model}), [remark]
    return config, []


def _records_needed(row: Row) -> int | None:
    """Returns the number of records N that gives enough reach at the same sampling rate and sigma; ``None`` if none does.

    The ratio of signal to noise is proportional to the number of groups, and so to N.
    """
    steps = row.plan.steps
    if row.reach <= 0 or ENOUGH >= steps:
        return None
    have, want = row.reach / steps, ENOUGH / steps
    ratio = (want / math.sqrt(1 - want**2)) / (have / math.sqrt(max(1e-12, 1 - have**2)))
    return math.ceil(row.plan.sampling.records * ratio)


def _memory(config: Config) -> int | None:
    try:
        return needs_of(config).together
    except (UserError, RuntimeError):  # the memory of some models cannot be computed
        return None
