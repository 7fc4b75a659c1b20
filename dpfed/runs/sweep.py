"""Runs a sweep: applies several sets of changes to one base configuration, trains a run with each, and compares the runs.

All runs of a sweep read the same private records, so they spend budget together. Somebody who sees several of the models may
learn more than one run's epsilon allows. The joint promise follows from basic composition: the epsilons add up, and so do the
deltas. `sweep` returns this joint promise in words. It counts the runs of this sweep only; other runs on the same records,
deleted ones too, add their epsilons and deltas. Evaluation figures are exact, and no epsilon covers them.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.view import read_view
from dpfed.building.own import own_records
from dpfed.building.plan import plan_of
from dpfed.callbacks import StepSummary
from dpfed.config import Config, parse_config
from dpfed.data.record_set import RecordSet
from dpfed.data.sampling import protected_count
from dpfed.errors import UserError, goes_on, nearest
from dpfed.evaluation.measured import Evaluation
from dpfed.files.shipped import find_sweep
from dpfed.files.toml_file import leaves, put, read_toml
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import large_delta, meaning, protected_by, round_up
from dpfed.progress import Progress, Silent
from dpfed.report.html import write_report
from dpfed.report.view import RunView
from dpfed.runs.budgeting import hold_sweep, may_have_budget, preflight_budget
from dpfed.runs.preflight import Preflight
from dpfed.runs.pretraining import run_pretraining
from dpfed.runs.records import records_of
from dpfed.runs.resolution import resolve_defaults
from dpfed.schema.wording import has_control_characters, shown

_COMPARISON = "comparison.html"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{,99}")  # the name of a folder


@dataclass(frozen=True)
class Sweep:
    """A sweep file, applied to a base configuration.

    Attributes:
        name: Name of the sweep, and of its folder.
        about: Description of the comparison, for people.
        configs: Whole configurations of the runs by the runs' names, in the order of the file.
    """

    name: str
    about: str
    configs: dict[str, Config]


@dataclass(frozen=True)
class SweepOutcome:
    """Outcome of a sweep.

    Attributes:
        sweep: The sweep.
        runs: Finished runs, in the sweep's order.
        promise: Joint promise of all runs, in words; see `joint_promise`.
        comparison: Path of the report that compares the runs.
    """

    sweep: Sweep
    runs: list[RunView]
    promise: str
    comparison: Path


def sweep(base: Config, file: str | Path, folder: str | Path, progress: Progress | None = None) -> SweepOutcome:
    """Trains every run of a sweep file into ``folder/SWEEP/RUN`` and writes ``folder/SWEEP/comparison.html``.

    Finished runs are kept, and interrupted runs are resumed. The outcome's `promise` says what privacy all runs cost together:
    by basic composition, epsilons and deltas of runs on the same records add up.

    Args:
        base: Configuration that all runs have in common.
        file: TOML file, or the name of a sweep that dpfed ships, such as ``table5``. The file has ``name``, ``about`` and, for
            each run, a table ``[[run]]`` with ``name`` and ``set``: a table of changed values, by dotted key such as
            ``"adaptation.rank"``.
        folder: Folder that holds the sweeps' folders.
        progress: Progress, which shows the stages.

    Raises:
        UserError: Before anything is trained, for a bad entry, a folder that holds another run, or too little left of a
            lifetime budget; later, for a run that `pretrain` or `resume` refuses. The runs that are finished by then stay.
    """
    progress = progress or Silent()
    asked = read_sweep(file, base)
    target = Path(folder) / asked.name
    preflights: dict[str, Preflight] = {}
    for name, config in asked.configs.items():
        preflights[name] = Preflight.of(config, target / name, progress=_Prefixed(progress, name), resume=True)
        if preflights[name].there:
            RunDirectory.open(target / name).refuse_another(resolve_defaults(config))
    _reserve({new.folder: new.config for new in preflights.values() if not new.there})
    advance = progress.stage("runs", len(asked.configs))
    runs: list[RunView] = []
    with goes_on(lambda: f"stopped with {len(runs)} of {len(asked.configs)} runs finished; the same command resumes"):
        for name, preflight in preflights.items():
            runs.append(read_view(run_pretraining(preflight, _Prefixed(progress, name)).path))
            advance(len(runs))
    comparison = target / _COMPARISON
    promise = joint_promise(runs)
    write_report(comparison, runs, promise)
    return SweepOutcome(asked, runs, promise, comparison)


def read_sweep(file: str | Path, base: Config) -> Sweep:
    """Reads a sweep file and checks the configuration of every run.

    Args:
        file: TOML file, or the name of a sweep that dpfed ships; see `sweep`.
        base: Configuration that all runs have in common.

    Raises:
        UserError: For a missing or malformed file, a name that occurs twice, an unknown key or a value out of range.
    """
    tree = read_toml(find_sweep(file), "sweep")
    _refuse_unknown(tree, ("name", "about", "run"), str(file))
    entries = tree.get("run")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{file} has no [[run]] tables; a sweep needs at least one, with name and set. [sweep-runs-missing]")
    configs: dict[str, Config] = {}
    for number, entry in enumerate(entries, start=1):
        _refuse_unknown(entry, ("name", "set"), f"{file}, run {number}")
        name = _name(entry, f"{file}, run {number}")
        if name in configs:
            raise UserError(f"{file} has two runs named '{name}'; give each its own name. [sweep-name-twice]")
        if name == _COMPARISON:
            raise UserError(f"{file}: the sweep's report has the name '{name}'; give the run another name. [sweep-name-taken]")
        configs[name] = _changed(base, entry.get("set", {}), name, f"{file}, run '{name}'")
    about = tree.get("about", "")
    if not isinstance(about, str):
        raise UserError(f"{file}: 'about' must be a string; got {shown(about)}. [sweep-about-type]")
    return Sweep(_name(tree, str(file)), about, configs)


def joint_promise(runs: list[RunView]) -> str:
    """States the joint promise of several runs on the same private records, in a few sentences, by basic composition.

    An (epsilon_1, delta_1) and an (epsilon_2, delta_2) private release are together (epsilon_1 + epsilon_2, delta_1 + delta_2)
    private, also when the second was chosen after seeing the first. Runs that protect different privacy units have no joint
    epsilon.
    """
    void = [run.name for run in runs if run.void]
    if void:
        return f"No joint promise holds for these {len(runs)} runs, because no guarantee holds for {', '.join(void)}."
    protected = {protected_by(tomllib.loads(run.config_toml).get("privacy", {}).get("unit", "record")) for run in runs}
    if len(protected) > 1:
        return f"No joint promise is stated for these {len(runs)} runs: some protect a record and some a unit."
    epsilon, delta = (math.fsum(getattr(run, name) for run in runs) for name in ("epsilon", "delta"))
    (unit,) = protected
    counts = [count for run in runs if (count := run.results["privacy"].get("records"))]
    warning = large_delta(delta, min(counts), unit) if counts else ""
    return (
        f"{warning} Joint promise: together these {len(runs)} runs are ({round_up(epsilon)}, {round_up(delta)})-differentially "
        "private, because epsilons and deltas add up on the same records. Towards somebody who sees several of the models, "
        f"this promise holds, and not one run's own epsilon. {meaning(epsilon, delta, unit, 'what they released together')} "
        "Evaluation figures are exact, and no epsilon covers them."
    ).strip()


def _reserve(configs: dict[Path, Config]) -> None:
    """Reserves the cost of all new runs in the lifetime budgets of their records, if the records have any."""
    stores: dict[str, RecordSet] = {}
    plans: dict[str, dict[Path, tuple[str, PrivacyPlan]]] = {}
    for folder, config in configs.items():
        if not may_have_budget(config):
            continue
        resolved = resolve_defaults(config)
        store = own_records(resolved) if resolved.data.is_own else records_of(resolved)
        plan = plan_of(protected_count(store, config.privacy.unit), resolved)
        preflight_budget(folder, resolved, store, plan)
        if plan.has_guarantee:
            known = store.budget_fingerprint
            stores[known] = store
            plans.setdefault(known, {})[folder] = (config.name, plan)
    for known, planned in plans.items():
        hold_sweep(stores[known], planned)


class _Prefixed(Progress):
    """Progress that puts the name of the run before each stage and note."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """See `Progress`."""
        return self._progress.stage(f"{self._name}: {name}", total)

    def note(self, text: str) -> None:
        """See `Progress`."""
        self._progress.note(f"{self._name}: {text}")

    def on_step(self, step: StepSummary) -> None:
        """See `Callback`."""
        self._progress.on_step(step)

    def on_evaluation(self, figures: list[Evaluation]) -> None:
        """See `Callback`."""
        self._progress.on_evaluation(figures)


def _refuse_unknown(table: dict[str, Any], valid: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in valid:
            raise UserError(f"{where}: unknown key {key!r}; {nearest(key, valid)} [sweep-key-unknown]")


def _name(table: dict[str, Any], where: str) -> str:
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(
            f"{where}: 'name' must begin with a letter or digit, and have at most 100 letters, digits, '.', '_' and '-'; got "
            f"{shown(name)}. [sweep-name-wrong]"
        )
    return name


def _changed(base: Config, changes: Any, name: str, where: str) -> Config:
    if not isinstance(changes, dict):
        raise UserError(
            f"{where}: 'set' must be a table of keys such as \"adaptation.rank\"; got {shown(changes)}. [sweep-set-type]"
        )
    tree = base.model_dump(mode="json")
    try:
        asked = leaves(changes)
    except UserError as error:
        raise UserError(f"{where}: {error.sentence} [sweep-set-wrong]") from None
    for key, value in asked.items():
        if key == "name":
            raise UserError(f"{where}: 'set' cannot change 'name': give the run's name beside 'set'. [sweep-set-name]")
        if has_control_characters(key):
            raise UserError(f"{where}: unknown key {key!r}: it has a line break or control character. [sweep-key-unprintable]")
        put(tree, key, value, where)
    return parse_config({**tree, "name": name}, where)
