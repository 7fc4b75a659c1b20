"""What a private run will come to, told before it: from its plan, and from gradients that are measured on public records.

One noisy step goes in the gradient's direction with a cosine of r / sqrt(1 + r^2), where r is signal over noise
(`dpfed.runs.gradient_signal`). The optimizers of private training normalise their steps, so T noisy steps go about as far along
the gradient as T cosines of steps without noise: the reach of the plan. It orders plans; it is no figure of accuracy
(docs/forecast.md holds it against runs).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpfed.config import Config
from dpfed.config.effects import effective
from dpfed.config.sections import PROCEDURAL
from dpfed.errors import UserError
from dpfed.models.starting import MissingStart
from dpfed.models.summary import trained_part
from dpfed.privacy import accounting
from dpfed.privacy.plan import PrivacyPlan
from dpfed.progress import Silent, Watcher
from dpfed.runs.gradient_signal import Signal, measured
from dpfed.runs.imitation import Imitation
from dpfed.runs.resolution import settle
from dpfed.runs.stand_in import StandIn
from dpfed.runs.starts import starting_weights
from dpfed.training.memory import memory_of, needs_of

ENOUGH, SOME = 20.0, 8.0  # of a reach: benchmarks/forecast.py
_RECORDS = 1_000  # public ones that are looked at
_BUDGET = 24.0  # seconds for all gradients, as a rule
_LONGER = 2.0  # times as long as configured: as long as the best of the grid may take
_ROUNDS = 4  # of a search for sigma

Verdict = Literal["can work", "will learn little", "will not work"]


@dataclass(frozen=True)
class Row:
    """One plan of the grid.

    Attributes:
        what: differs from the configuration.
        plan: with its sigma.
        noise_over_gradient: of one step, by their lengths.
        reach: how many steps without noise the whole run is worth.
        seconds: that it takes on this machine.
        numbers: P.
    """

    what: str
    plan: PrivacyPlan
    noise_over_gradient: float
    reach: float
    seconds: float
    numbers: int

    @classmethod
    def of(cls, what: str, plan: PrivacyPlan, signal: Signal) -> Row:
        """What a plan comes to, with the gradient of its groups."""
        noise = plan.noise_std / plan.divisor
        length = noise * math.sqrt(signal.numbers)
        over = length / signal.length if signal.length else math.inf
        ratio = signal.response / noise
        reach = plan.steps * ratio / math.hypot(1.0, ratio)
        return cls(what, plan, over, reach, signal.seconds * plan.batch * plan.steps, signal.numbers)

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        plan = self.plan
        return {
            "what": self.what,
            "batch": plan.batch,
            "group_size": plan.group_size,
            "steps": plan.steps,
            "epsilon": plan.target_epsilon,
            "noise_multiplier": plan.noise_multiplier,
            "trained_numbers": self.numbers,
            "noise_over_gradient": _finite(self.noise_over_gradient),
            "reach": self.reach,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Forecast:
    """What is to be expected of a private run.

    Attributes:
        name: of the configuration.
        rows: the configured plan, then changes of one number each, then the best of all of them together.
        signal: of the configured plan.
        epsilon: of the configured plan.
        trained: what of the model is trained, in words.
        measured_on: the public records.
        suits: which kind of training goes further; ``None``: the model has no adapters.
        records_needed: so many would be enough, at the same sampling rate; ``None``: no number would.
        memory: bytes that training takes at least; ``None``: not known.
        memory_there: bytes that this machine has.
        remarks: what to know about the measurement.
    """

    name: str
    rows: Sequence[Row]
    signal: Signal
    epsilon: float
    trained: str
    measured_on: str
    suits: Literal["lora", "full"] | None
    records_needed: int | None
    memory: int | None
    memory_there: int
    remarks: Sequence[str]

    @property
    def configured(self) -> Row:
        """The plan as it is configured."""
        return self.rows[0]

    @property
    def verdict(self) -> Verdict:
        """Whether the configured plan can work."""
        reach = self.configured.reach
        return "can work" if reach >= ENOUGH else "will learn little" if reach >= SOME else "will not work"

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        plan = self.configured.plan
        return {
            "name": self.name,
            "verdict": self.verdict,
            "records": plan.records,
            "epsilon": self.epsilon,
            "delta": plan.delta,
            "accountant": plan.accountant,
            "sampling_rate": plan.sampling_rate,
            "groups": plan.groups,
            "configured": self.configured.facts(),
            "grid": [row.facts() for row in self.rows[1:]],
            "signal": {**dataclasses.asdict(self.signal), "error": _finite(self.signal.error)},
            "suits": self.suits,
            "records_needed": self.records_needed,
            "measured_on": self.measured_on,
            "memory": self.memory,
            "memory_there": self.memory_there,
            "remarks": list(self.remarks),
        }


def forecast(config: Config, plan: PrivacyPlan, stand: StandIn, watcher: Watcher | None = None) -> Forecast:
    """Measures gradients on public records, and says what the private run will come to.

    Args:
        config: of the private run.
        plan: of the private run (`dpfed.runs.stand_in.declared_plan`).
        stand: the public records (`dpfed.runs.stand_in.chosen`).
        watcher: is told what is done.

    Raises:
        UserError: whatever `assemble` refuses.
    """
    watcher = watcher or Silent()
    config, remarks = _with_a_start(config)
    watcher.note(f"opening {stand.title}")
    imitation = Imitation.of(config, plan, stand, stand.at_most(_RECORDS), watcher)
    parts = imitation.parts
    if plan.unit == "user" and parts.plan.unit == "record":
        remarks.append(f"{stand.title} name no units: each of their records counts as a unit of its own")
    sizes = _group_sizes(plan, imitation.protected)
    other = _other_training(config)
    budget = _BUDGET / (len(sizes) + bool(other))
    watcher.note(f"measuring gradients of groups of {', '.join(map(str, sizes))}")
    signals = {size: measured(imitation, dataclasses.replace(plan, group_size=size), budget) for size in sizes}
    signal = signals[plan.group_size]
    rows = [Row.of("as configured", plan, signal)]
    suits: Literal["lora", "full"] | None = None
    if other is not None:
        kind, changed = other
        watcher.note(f"measuring the same with {_NAMES[kind]}")
        elsewhere = measured(Imitation.of(changed, plan, stand, stand.at_most(_RECORDS), watcher), plan, budget)
        rows.append(Row.of(_NAMES[kind], plan, elsewhere))
        suits = kind if rows[1].reach > rows[0].reach else "full" if kind == "lora" else "lora"
    watcher.note("accounting for other batches, steps and epsilons")
    epsilon = plan.epsilon()
    rows += _grid(plan, signals, config.optimizer.warmup, epsilon, rows[0].seconds)
    if signal.error > 0.3:
        remarks.append(f"the gradient is measured on {signal.groups} groups only, to within {signal.error:.0%}")
    return Forecast(
        name=config.name,
        rows=rows,
        signal=signal,
        epsilon=epsilon,
        trained=str(trained_part(parts.model, parts.config)),
        measured_on=f"{signal.groups} groups of {stand.title}",
        suits=suits,
        records_needed=_records_needed(rows[0]),
        memory=_memory(parts.config),
        memory_there=memory_of(parts.device),
        remarks=remarks,
    )


_NAMES = {"lora": "LoRA", "full": "full training"}


def _with_a_start(config: Config) -> tuple[Config, list[str]]:
    """The configuration to be measured; a procedural start that is not made yet is left out."""
    if config.model.start != PROCEDURAL:
        return config, []
    try:
        starting_weights(settle(config))
    except MissingStart:
        model = config.model.model_copy(update={"start": None})
        remark = "the procedural start is not made yet (`dpfed start`): measured at random weights, which tell less"
        return config.model_copy(update={"model": model}), [remark]
    return config, []


def _other_training(config: Config) -> tuple[Literal["lora", "full"], Config] | None:
    """The same run with full training in the place of LoRA, or the other way round, where the model can have either."""
    if not config.model.external or config.adaptation.of_images(config.model.kind) == "frozen":
        return None
    kind: Literal["lora", "full"] = "full" if config.adaptation.of_images(config.model.kind) == "lora" else "lora"
    text = config.adaptation.text if config.adaptation.text == "frozen" else kind
    adaptation = config.adaptation.model_copy(update={"image": kind, "text": text})
    return kind, effective(config.model_copy(update={"adaptation": adaptation}))


def _group_sizes(plan: PrivacyPlan, records: int) -> list[int]:
    """The configured group size, its half and its double."""
    own = plan.group_size
    if plan.method.public_records:
        return [own]
    return [own, *(size for size in (own // 2, 2 * own) if 2 <= size <= min(plan.batch, records // 2))]


def _grid(plan: PrivacyPlan, signals: dict[int, Signal], warmup: int, epsilon: float, seconds: float) -> Iterator[Row]:
    """Plans that differ in one number, and the best of all combinations that do not take much longer."""
    batches = [batch for batch in (plan.batch // 2, 2 * plan.batch, 4 * plan.batch) if 2 <= batch <= plan.records]
    steps = [count for count in (plan.steps // 2, 2 * plan.steps) if count > warmup]
    own = signals[plan.group_size]
    for size in list(signals)[1:]:
        yield Row.of(f"group size {size}", dataclasses.replace(plan, group_size=size), signals[size])
    noisy = {(plan.batch, plan.steps): plan}
    for batch, count in itertools.product([plan.batch, *batches], [plan.steps, *steps]):
        if (batch, count) not in noisy and (found := _same_promise(plan, batch, count)) is not None:
            noisy[batch, count] = found
    for batch in batches:
        if (found := noisy.get((batch, plan.steps))) is not None:
            yield Row.of(f"batch {batch:,}", found, own)
    for count in steps:
        if (found := noisy.get((plan.batch, count))) is not None:
            yield Row.of(f"{count:,} steps", found, own)
    for factor in (0.5, 2.0):
        if (found := _same_promise(plan, plan.batch, plan.steps, factor)) is not None:
            yield Row.of(f"epsilon {epsilon * factor:.3g}", found, own)
    together = [
        Row.of("", dataclasses.replace(found, group_size=size), signals[size])
        for (batch, _), found in noisy.items()
        for size in signals
        if size <= batch
    ]
    best = max((row for row in together if row.seconds <= _LONGER * seconds * 1.01), key=lambda row: row.reach)
    chosen = best.plan
    yield dataclasses.replace(best, what=f"best: B {chosen.batch:,}, S {chosen.group_size}, T {chosen.steps:,}")


def _same_promise(plan: PrivacyPlan, batch: int, steps: int, factor: float = 1.0) -> PrivacyPlan | None:
    """The plan with another batch, other steps or `factor` times its epsilon, and about the sigma that this needs.

    Renyi accounting is the quick one: sigma is searched for at which it says what it says of the plan itself.

    Returns:
        The plan; ``None``: there is no such sigma.
    """
    wanted = plan.epsilon(accountant="rdp") * factor
    draft = dataclasses.replace(
        plan,
        batch=batch,
        group_size=min(plan.group_size, batch),
        steps=steps,
        target_epsilon=None if plan.target_epsilon is None else plan.target_epsilon * factor,
    )
    # The central limit of subsampled Gaussians: q^2 T (exp(1 / sigma^2) - 1) stays what it is.
    scale = (plan.sampling_rate / draft.sampling_rate) ** 2 * plan.steps / steps * factor**2
    sigma = math.log1p(math.expm1(min(plan.noise_multiplier**-2, 500.0)) * scale) ** -0.5
    slope, last = -1.0, None
    try:
        for _ in range(_ROUNDS):
            sigma = min(max(sigma, accounting.LEAST_NOISE), accounting.MOST_NOISE)
            found = dataclasses.replace(draft, noise_multiplier=sigma)
            here = (math.log(sigma), math.log(found.epsilon(accountant="rdp") / wanted))
            if last is not None and here[0] != last[0]:
                slope = min(-0.2, (here[1] - last[1]) / (here[0] - last[0]))
            if abs(here[1]) < 0.01:
                return found
            last, sigma = here, math.exp(here[0] - here[1] / slope)
    except (UserError, ValueError, OverflowError):
        return None
    return found


def _records_needed(row: Row) -> int | None:
    """N with which the run would reach far enough, at the same q and sigma: signal over noise grows as the groups do."""
    steps = row.plan.steps
    if row.reach <= 0 or ENOUGH >= steps:
        return None
    have, want = row.reach / steps, ENOUGH / steps
    ratio = (want / math.sqrt(1 - want**2)) / (have / math.sqrt(max(1e-12, 1 - have**2)))
    return math.ceil(row.plan.records * ratio)


def _memory(config: Config) -> int | None:
    try:
        return needs_of(config).together
    except (UserError, RuntimeError):  # there are models that cannot be counted
        return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
