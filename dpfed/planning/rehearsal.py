"""Rehearses a private run: trains on public records, with the private run's sampling rate q, noise sigma and steps T.

The private run has N records and K groups in a step. Training on n public records simulates the fraction n/N of that run: every
public record is sampled with the private rate q, and assigned to one of K n/N groups. The sum over these groups is then scaled
up to K groups, and gets the noise of the private plan. So the ratio of noise to gradient is the same as in the private run. A
rehearsal is a simulation: its noise protects nobody, and it promises nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dpfed
from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.config import Config, parse_config
from dpfed.data.store.layout import read_layout
from dpfed.errors import UserError, goes_on
from dpfed.files.atomic import write_atomically
from dpfed.files.json_lines import DamagedLine, append_line, drop_torn_line, read_lines
from dpfed.files.toml_file import put
from dpfed.planning.proxy import Proxy, declared_plan
from dpfed.planning.simulated import SimulatedRun
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress, Silent, duration
from dpfed.report.results import Result, headlines, results_of, shown, tied
from dpfed.runs.resolution import resolve_defaults
from dpfed.runs.starts import starting_weights
from dpfed.training.loop import train
from dpfed.training.post_processing import averaged_weights
from dpfed.training.worker import Worker

RESULTS = "rehearsal.jsonl"
ENOUGH_GROUPS = 16  # groups in a step; with fewer, results vary clearly more than the private run's
_FACTORS = (1 / 3, 3.0)  # factors of the learning rate that are tried
_SHORT = {"optimizer.learning_rate": "rate", "bounding.group_size": "S", "privacy.steps": "T"}


class ScaledUp:
    """A `Transport` that scales the sum over some of the plan's groups up to the sum over all K groups.

    Args:
        worker: Worker that holds a part of the groups.
        plan: Plan of the private run.
        groups: Expected number of the worker's groups; need not be whole.
    """

    def __init__(self, worker: Worker, plan: PrivacyPlan, groups: float) -> None:
        self._worker, self._plan, self._scale = worker, plan, plan.groups / groups

    def aggregate(self, step: int) -> BoundedSum:
        """Returns the sum of a step, scaled up to all K groups; see `Transport.aggregate`."""
        partial = self._worker.bounded_sum(step)
        values = (partial.values.double() * self._scale).to(partial.values.dtype)
        return BoundedSum(values, self._plan.sensitivity, self._plan.groups, unit=partial.unit)

    def set_clip_threshold(self, threshold: float) -> None:
        """Sets the worker's clip threshold, see `Transport.set_clip_threshold`."""
        self._worker.threshold = threshold


@dataclass(frozen=True)
class Rehearsed:
    """The result of a rehearsal with one set of changes of the configuration.

    Attributes:
        name: Name of the set of changes.
        changes: Changed values by key of the configuration.
        noise_multiplier: Noise multiplier sigma of the private run with these changes.
        groups: Number of groups in a step on the public records; the private run has K.
        evaluations: Figures of the model before and after training, in the form of `Evaluation.facts`.
        seconds: Duration of this training and its measurement, in seconds.
    """

    name: str
    changes: dict[str, Any]
    noise_multiplier: float
    groups: int
    evaluations: list[dict[str, Any]]
    seconds: float

    @property
    def headline(self) -> Result:
        """The figure by which results are compared."""
        return headlines(results_of(self.evaluations), 1)[0]


@dataclass(frozen=True)
class Rehearsal:
    """The results of a rehearsal.

    Attributes:
        tried: Results in the order of training; the first is that of the unchanged configuration.
        best: Result with the best headline, if it beats the unchanged configuration by more than chance; otherwise the first.
        config: Configuration of the private run with the best changes.
        file: File to which this configuration was written.
        plan: Plan of the private run with the best changes.
    """

    tried: list[Rehearsed]
    best: Rehearsed
    config: Config
    file: Path
    plan: PrivacyPlan

    @property
    def verdict(self) -> str:
        """Result of the rehearsal, in a sentence."""
        first, best = self.tried[0].headline, self.best.headline
        figure = f"{best.label} {shown(best.trained, best.trained_interval)}"
        if self.best is self.tried[0]:
            lead = f"No tried setting beats the configuration by more than chance, so the configuration is kept: {figure}"
        else:
            lead = f"Best: {self.best.name}, {figure} ({shown(first.trained)} as configured)"
        learnt = (
            ""
            if best.improved
            else "; but there is no measurable gain over the untrained model, and `dpfed forecast` says what would help"
        )
        return f"{lead}{learnt}."

    def facts(self) -> dict[str, Any]:
        """Returns the rehearsal as values for JSON."""
        return {
            "tried": [asdict(result) for result in self.tried],
            "best": self.best.name,
            "changes": self.best.changes,
            "file": str(self.file),
            "verdict": self.verdict,
            "records": self.plan.sampling.records,
            "epsilon": self.plan.epsilon(),
        }


def rehearse(
    config: Config,
    stand: Proxy,
    folder: str | Path,
    records: int | None = None,
    most: int = 5_000,
    progress: Progress | None = None,
) -> Rehearsal:
    """Simulates the private run on public records with several settings, and writes the best configuration.

    Finished results are kept in the folder, and an interrupted rehearsal resumes.

    Args:
        config: Configuration of the private run.
        stand: Public records that replace the private ones.
        folder: Folder for results and the configuration.
        records: N, the number of private training records (or units, if units are protected); default: the number in the
            configuration or the store.
        most: Largest number of public records to train on.
        progress: Receiver of stages and notes.

    Raises:
        UserError: If there is no plan (see `declared_plan`), the starting weights are missing, the public records are too few,
            the model cannot be measured on them, or the kept results are damaged.
    """
    progress, folder = progress or Silent(), Path(folder)
    tried: list[Rehearsed] = []
    starting_weights(resolve_defaults(config))  # before anything that takes seconds
    kept, engines = _Kept(folder), dict[int, str]()
    total = 1 + len(_FACTORS) + sum(map(len, _others(config).values()))

    def run_rehearsal(name: str, changes: dict[str, Any]) -> None:
        changed = _changed(config, changes)
        plan = declared_plan(changed, records, Silent())
        key = _key(changed, plan, stand, most)
        result = kept.get(key)
        if result is None:
            progress.note(f"{len(tried) + 1} of {total}: {name}{_time_left(tried, total)}")
            result = _trained(name, changes, changed, plan, stand, most, progress, engines)
            kept.keep(key, result)
        tried.append(result)

    with goes_on(lambda: f"stopped after {len(tried)} settings, whose results are kept; the same command resumes"):
        for changes in _stages(config, tried):
            run_rehearsal(_in_words(changes), changes)
    best = _best(tried)
    chosen = _changed(config, best.changes)
    file = folder / f"{config.name}.toml"
    said = f"# Chosen on public records ({stand.title}) by `dpfed rehearse`: {_in_words(best.changes)}\n"
    write_atomically(file, said + chosen.dump(defaults=False))
    return Rehearsal(tried, best, chosen, file, declared_plan(chosen, records, Silent()))


def _trained(
    name: str,
    changes: dict[str, Any],
    config: Config,
    plan: PrivacyPlan,
    stand: Proxy,
    most: int,
    progress: Progress,
    engines: dict[int, str],
) -> Rehearsed:
    """Trains and measures one configuration on the public records; `engines` caches the fastest engine by group size."""
    count, rate, size = stand.at_most(min(most, plan.sampling.records)), plan.sampling.rate, plan.bounding.group_size
    if rate * count < 2 * size:
        least = math.ceil(2 * size / rate)
        raise UserError(
            f"{stand.title}: of the {count:,} public records for training, a step samples {rate * count:.1f} (q = "
            f"{rate:.3g}), which is fewer than two groups of {size}. Raise privacy.batch, or give at least {least:,} public "
            "records (--public, --public-records). A rehearsal uses no more public records than the private run has records. "
            "[rehearsal-few-records]"
        )
    started = time.perf_counter()
    config = _changed(config, {"bounding.engine": engines.get(size, config.bounding.engine)})
    simulated = SimulatedRun.of(config, plan, stand, count, progress, measured=True)
    engines[size] = simulated.parts.config.bounding.engine
    parts, groups = simulated.parts, plan.groups * simulated.protected / plan.sampling.records
    if groups < ENOUGH_GROUPS:
        progress.note(f"{groups:.0f} groups a step are few: results vary more than with the private run's {plan.groups:,}")
    before = parts.evaluator(parts.model, "untrained", 0)
    whole = max(1, round(groups))
    randomness = Randomness.from_seed(1)
    worker = simulated.worker(parts.plan, randomness, whole)
    # If each record makes its own group, the number of groups depends on the sampled records; otherwise it is fixed.
    share = groups if plan.bounding.method.public_records else whole
    advance = progress.stage(f"{name}: steps", plan.steps)
    with tempfile.TemporaryDirectory() as temporary:  # the ledger is discarded: nothing private was read
        coordinator = parts.learner.coordinator(randomness, Ledger.create(Path(temporary) / "ledger.jsonl", parts.plan))
        train(ScaledUp(worker, plan, share), coordinator, range(plan.steps), advance=advance)
        with averaged_weights(parts.model, coordinator.post_processors):
            after = [figure.compared(before) for figure in parts.evaluator(parts.model, "trained", plan.steps)]
    progress.on_evaluation(after)
    figures = json.loads(json.dumps([figure.facts() for figure in (*before, *after)]))  # same types as when read from the file
    seconds = time.perf_counter() - started
    return Rehearsed(name, changes, plan.noise.multiplier, whole, figures, seconds)


def _stages(config: Config, tried: list[Rehearsed]) -> Iterator[dict[str, Any]]:
    """Yields the sets of changes to try: first none, then several learning rates, then other values of integer settings.

    The values of each integer setting are tried on top of the best set so far.
    """
    yield {}
    rate = config.optimizer.learning_rate
    for factor in _FACTORS:
        yield {"optimizer.learning_rate": float(f"{rate * factor:.2g}")}
    for key, values in _others(config).items():
        before = _best(tried).changes
        for value in values:
            yield {**before, key: value}


def _others(config: Config) -> dict[str, list[int]]:
    """Returns the values to try for each integer setting that may change, by key.

    They are half and twice the configured value, without those that the run does not allow.
    """
    choices, size, steps = {}, config.bounding.group_size, config.privacy.steps
    if "bounding.group_size" not in config.without_effect():
        choices["bounding.group_size"] = [other for other in (size // 2, size * 2) if 2 <= other <= config.privacy.batch]
    if config.privacy.noise_multiplier is None:  # with a fixed sigma, other steps would change epsilon
        choices["privacy.steps"] = [other for other in (steps // 2, steps * 2) if other > config.optimizer.warmup + 1]
    return choices


def _time_left(tried: list[Rehearsed], total: int) -> str:
    each = [result.seconds for result in tried]
    return f"; about {duration(sum(each) / len(each) * (total - len(each)))} left in all" if each else ""


def _changed(config: Config, changes: dict[str, Any]) -> Config:
    tree = config.model_dump(mode="json")
    for key, value in changes.items():
        put(tree, key, value)
    return parse_config(tree, config.name)


def _best(tried: list[Rehearsed]) -> Rehearsed:
    """Returns the result with the best headline if that result beats the first by more than chance; otherwise the first."""
    best = max(tried, key=lambda result: result.headline.trained or 0.0)
    return tried[0] if tied(tried[0].headline, best.headline) else best


def _in_words(changes: dict[str, Any]) -> str:
    return ", ".join(f"{_SHORT.get(key, key)} = {value}" for key, value in changes.items()) or "as configured"


def _key(config: Config, plan: PrivacyPlan, stand: Proxy, most: int) -> str:
    """Returns a hash of everything on which a result depends, by which a kept result is found again."""
    fingerprint = None if stand.path is None else read_layout(stand.path).header["contents"]
    parts = [dpfed.__version__, config.dump(), plan.fingerprint, stand.source, str(stand.path), fingerprint, most]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class _Kept:
    """Finished results on disk, in a file of JSON lines."""

    def __init__(self, folder: Path) -> None:
        self._file, self._found = folder / RESULTS, {}
        folder.mkdir(parents=True, exist_ok=True)
        if not self._file.exists():
            return
        try:
            lines = read_lines(self._file)
            self._found = {entry.pop("key"): Rehearsed(**entry) for entry in lines.entries}
        except (DamagedLine, LookupError, TypeError) as error:
            raise UserError(
                f"{self._file} is damaged ({error}): delete this file, and rehearse again. [rehearsal-damaged]"
            ) from None
        drop_torn_line(self._file, lines)

    def get(self, key: str) -> Rehearsed | None:
        return self._found.get(key)

    def keep(self, key: str, result: Rehearsed) -> None:
        self._found[key] = result
        append_line(self._file, {"key": key, **asdict(result)})
