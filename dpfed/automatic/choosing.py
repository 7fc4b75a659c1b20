"""Makes a configuration from a data set and an epsilon, with a reason for each choice."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dpfed
from dpfed.automatic.expectation import Expectation, expected
from dpfed.automatic.pace import seconds_of
from dpfed.automatic.request import Request
from dpfed.automatic.rules import HELD_OUT, Choice, Situation, after_import, before_import, small_towers
from dpfed.automatic.survey import FEWEST, Survey, survey
from dpfed.automatic.towers import Towers, given_towers, towers_at_hand
from dpfed.budgets.registry import budgets_of
from dpfed.building.plan import plan_of
from dpfed.config import Config, parse_config
from dpfed.data.sampling import protected_count
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.files.toml_file import put
from dpfed.privacy.method import method_named
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import Unit, round_up
from dpfed.progress import Progress, Silent, duration, import_progress
from dpfed.runs.records import records_of
from dpfed.runs.resolution import pick_device, resolve_model_defaults

MINUTES = 20.0  # longest training time unless --minutes sets another
_FEWEST_STEPS, _SMALLEST_BATCH = 30, 64


@dataclass(frozen=True)
class Chosen:
    """A configuration with the reasons for its settings.

    Attributes:
        config: Complete configuration.
        choices: Choices, in the order in which they are printed.
        plan: Privacy plan of the run.
        seconds: Estimated duration of all steps (or of computing all features) on this machine, seconds; ``None``: the run is
            for other machines.
        expectation: Expected result.
        heading: Line about the data set.
    """

    config: Config
    choices: tuple[Choice, ...]
    plan: PrivacyPlan
    seconds: float | None
    expectation: Expectation
    heading: str

    @property
    def comments(self) -> list[str]:
        """The lines that explain the configuration: a heading, one line for each choice, and the expected result."""
        promised = round_up(self.plan.promise.target_epsilon or self.plan.epsilon())
        begin = f"Chosen by dpfed {dpfed.__version__} for epsilon {promised}; each line gives a reason."
        return [begin, *map(str, self.choices), f"expected: {self.expectation}"]

    def toml(self) -> str:
        """Returns the configuration as TOML, with the reasons as comments above it."""
        return self.config.dump(defaults=False, comments=self.comments)

    def facts(self) -> dict[str, Any]:
        """Returns the choices and their main numbers as a mapping for JSON."""
        return {
            "data": self.heading,
            "choices": [dataclasses.asdict(choice) for choice in self.choices],
            "config": self.config.model_dump(mode="json", exclude_defaults=True),
            "records": self.plan.sampling.records,
            "noise_multiplier": self.plan.noise.multiplier,
            "epsilon": self.config.privacy.epsilon,
            "delta": self.plan.promise.delta,
            "seconds": self.seconds,
            "expected": self.expectation.facts(),
        }


def choose(request: Request, progress: Progress | None = None) -> Chosen:
    """Imports a data set, and chooses all settings of a run on it from public facts.

    Among these facts are the number of records, the size of the first images, and the names of splits, classes and units
    (`dpfed.automatic.survey`). No pixel, no caption and no single record's label affects a choice.

    Args:
        request: Request of the user.
        progress: Display of the stages; ``None``: no display.

    Raises:
        UserError: If the data set cannot be read or is too small, the model is unknown, the time is too short, or a setting of
            the request is wrong or has no effect.
    """
    progress = progress or Silent()
    given = request.given()
    progress.note(f"looking at {request.data}")
    data_set = survey(request.data)
    device = pick_device(str(given.get("training.device", "auto"))).type
    situation = Situation(
        survey=data_set,
        epsilon=float(request.epsilon),
        towers=_towers(request, data_set, device, given),
        device=device,
        public=None if request.public is None else Path(request.public).absolute(),
        given=given,
    )
    Config.unchecked(**_tree({key: value for key, value in given.items() if not key.startswith("bounding.")}))
    choices = list(before_import(situation))
    store, situation = _imported(choices, situation, progress)
    unit = _merged(choices, given).get("privacy.unit", "record")
    situation = _counted(situation, store, unit)
    choices += after_import(situation)
    choices = [_as_given(choice, given) for choice in choices]
    config = configured(choices, given, request.name)
    plan = plan_of(situation.known_records, config)
    plan.require_finite()
    seconds = seconds_of(config, plan, progress)
    whole = config
    choices, config, seconds = _within(request.minutes, choices, config, seconds, situation)
    if config is not whole:
        plan = plan_of(situation.known_records, config)
    said = expected(config, plan, _held_out(config, store), situation.towers.pretrained)
    return Chosen(config, tuple(choices), plan, seconds, said, _heading(data_set, store))


def _towers(request: Request, data_set: Survey, device: str, given: dict[str, Any]) -> Towers:
    reads_text = data_set.kind == "image-text" and given.get("model.kind") != "image"
    if request.model is not None:
        return given_towers(request.model, reads_text, given)
    return towers_at_hand(reads_text) or small_towers(reads_text, device, data_set.records)


def _imported(choices: list[Choice], situation: Situation, progress: Progress) -> tuple[RecordStore, Situation]:
    """Imports the records unless they are a store already; returns the store, and the situation with the size of its images."""
    keys = _merged(choices, {**situation.towers.keys, **situation.given})
    keys = {key: value for key, value in keys.items() if key.startswith(("data.", "model."))}
    config = resolve_model_defaults(Config.unchecked(**_tree(keys)).effective())
    try:
        store = records_of(config, import_progress(progress), progress.note)
    except UserError as error:
        if error.code in ("record-unreadable", "import-lost-files"):
            error.command = f"Run `dpfed data import {config.data.path} STORE --skip-broken` first, then use --data STORE."
        raise
    return store, dataclasses.replace(situation, size=config.data.size or situation.size)


def _counted(situation: Situation, store: RecordStore, unit: Unit) -> Situation:
    """Returns the situation with three facts added: N, the evaluation split, and whether the records have a lifetime budget.

    Raises:
        UserError: If there are too few training records.
    """
    records = protected_count(store, unit)
    if records < FEWEST:
        counted = f"{situation.protected}s"
        raise UserError(
            f"{store.name} has {records:,} {counted} for training, and {len(store):,} records in all. With fewer than {FEWEST} "
            f"{counted}, noise hides all that a model could learn: give more {counted}, or use a public model as it is. "
            "[automatic-few-training]"
        )
    split = next((split for split in ("validation", "test") if store.count(split)), "none")
    return dataclasses.replace(situation, records=records, held_out=split, budgeted=bool(budgets_of(store)))


def configured(choices: list[Choice], given: dict[str, Any], name: str) -> Config:
    """Makes a configuration from the choices and the user's keys, and drops choices that then have no effect.

    Args:
        choices: Choices; a later choice overrides an earlier choice of the same key.
        given: Values of the keys that the user set, by dotted key; they override every choice.
        name: Name of the run.

    Raises:
        UserError: If a key that the user set is wrong, or has no effect.
    """
    keys = _merged(choices, given)
    tree = _tree({"name": name} | {key: value for key, value in keys.items() if key != "name" or value})
    for key in Config.unchecked(**tree).without_effect():
        if key in keys and key not in given:
            put(tree, key, None)
    return parse_config(tree, "the choices")


def _merged(choices: list[Choice], given: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of all choices with their values; the user's keys override them."""
    return {key: value for choice in choices for key, value in choice.keys.items()} | given


def _as_given(choice: Choice, given: dict[str, Any]) -> Choice:
    """Returns a choice with the user's values of its keys; its reason then names these keys."""
    set_ = {key: given[key] for key in choice.keys if key in given and given[key] != choice.keys[key]}
    if not set_:
        return choice
    said = ", ".join(f"{key} = {'its default' if value is None else value}" for key, value in set_.items())
    return dataclasses.replace(choice, why=f"{choice.why}; you set {said} instead", keys={**choice.keys, **set_})


def _tree(keys: dict[str, Any]) -> dict[str, Any]:
    """Nests dotted keys into sections; a key whose value is ``None`` keeps its default."""
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        if value is not None:
            put(tree, key, value)
    return tree


def _within(
    minutes: float | None, choices: list[Choice], config: Config, seconds: float, situation: Situation
) -> tuple[list[Choice], Config, float]:
    """Shortens the plan to the allowed time: first with a smaller batch, then with fewer steps.

    Args:
        minutes: Longest training time, minutes; ``None``: 20 minutes, and a plan that cannot be shortened enough is not
            refused.
        choices: Choices so far.
        config: Configuration that the choices give.
        seconds: Estimated duration with this configuration, seconds.
        situation: Public facts of the run.

    Returns:
        The choices, the configuration and the estimated seconds.

    Raises:
        UserError: If `minutes` is given, and even the smallest plan takes longer.
    """
    allowed, given = 60 * (MINUTES if minutes is None else minutes), situation.given
    asked = f"--minutes {minutes:g}" if minutes is not None else f"{MINUTES:g} minutes"
    batch, steps = config.privacy.batch, config.privacy.steps
    if method_named(config.bounding.method).closed_form:
        if minutes is not None and seconds > allowed:
            raise UserError(
                f"the features of {situation.known_records:,} records take about {duration(seconds)} on this machine, more "
                f"than {asked} allows: allow more time, or give a smaller tower with --model. [automatic-minutes-features]"
            )
        return choices, config, seconds
    each = seconds / (batch * steps)
    if "privacy.batch" not in given:
        batch = max(min(batch, _SMALLEST_BATCH), min(batch, int(allowed / (each * steps))))
    if "privacy.steps" not in given:
        steps = max(min(steps, _FEWEST_STEPS), min(steps, int(allowed / (each * batch))))
    if minutes is not None and each * batch * steps > 1.1 * allowed:
        raise UserError(
            f"{steps} steps of {batch:,} records take about {duration(each * batch * steps)} on this machine, more than "
            f"{asked} allows; dpfed does not lower the steps below {_FEWEST_STEPS}, or the batch below {_SMALLEST_BATCH}. "
            "Allow more time, or give a smaller model, smaller images (--set data.size=32), or a smaller --batch or --steps. "
            "[automatic-minutes]"
        )
    if (batch, steps) == (config.privacy.batch, config.privacy.steps):
        return choices, config, seconds
    keys = {"privacy.batch": batch, "privacy.steps": steps}
    plan = Choice(
        "plan",
        f"B = {batch:,}, T = {steps}",
        f"as much as {asked} allow{'s' if minutes else ''}, measured with random images",
        keys,
    )
    choices = [plan if choice.topic == "plan" else choice for choice in choices]
    return choices, configured(choices, given, config.name), each * batch * steps


def _held_out(config: Config, store: RecordStore) -> int:
    """Returns the number of evaluation records; if it is 0, one sixth of the training records, but at least 1."""
    split = config.evaluation.split
    return (store.count(split) if split != "none" else 0) or max(1, store.count("train") // HELD_OUT)


def _heading(data_set: Survey, store: RecordStore) -> str:
    what = "captioned images" if store.kind == "image-text" else "images"
    classes = f" of {data_set.classes} classes" if data_set.classes else ""
    held = sum(store.count(split) for split in ("validation", "test"))
    there = f"{store.count('train'):,} to train on" + (f", {held:,} held out" if held else "")
    return f"{data_set.path.name}: {len(store):,} {what}{classes}; {there}"
