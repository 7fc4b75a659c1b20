"""From a data set and an epsilon to a configuration, each choice of it with its reason."""

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

MINUTES = 20.0  # that a run on this machine may take, where nobody says
_FEWEST_STEPS, _SMALLEST_BATCH = 30, 64


@dataclass(frozen=True)
class Chosen:
    """A configuration, and why it is as it is.

    Attributes:
        config: complete.
        choices: that were made, in the order in which they are said.
        plan: of the run.
        seconds: that it will take on this machine, as far as the records go; ``None``: it runs elsewhere.
        expectation: what will come of it.
        heading: the data set in a line.
    """

    config: Config
    choices: tuple[Choice, ...]
    plan: PrivacyPlan
    seconds: float | None
    expectation: Expectation
    heading: str

    @property
    def comments(self) -> list[str]:
        """The choices, as lines of a file."""
        promised = round_up(self.plan.promise.target_epsilon or self.plan.epsilon())
        begin = f"Chosen by dpfed {dpfed.__version__} for epsilon {promised}; each line gives a reason."
        return [begin, *map(str, self.choices), f"expected: {self.expectation}"]

    def toml(self) -> str:
        """The configuration with the reasons above it, for whoever changes it."""
        return self.config.dump(defaults=False, comments=self.comments)

    def facts(self) -> dict[str, Any]:
        """For JSON."""
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
    """Chooses all that a run needs, from public numbers alone. The data set is imported; no record shapes a choice.

    Args:
        request: of the user.
        progress: sees the stages.

    Raises:
        UserError: for a data set that cannot be read or is too small, a model that is not known, a time too short for a step.
    """
    progress = progress or Silent()
    given = request.given()
    progress.note(f"looking at {request.data}")
    found = survey(request.data)
    device = pick_device(str(given.get("training.device", "auto"))).type
    situation = Situation(
        survey=found,
        epsilon=float(request.epsilon),
        towers=_towers(request, found, device, given),
        device=device,
        public=None if request.public is None else Path(request.public).absolute(),
        given=given,
    )
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
    return Chosen(config, tuple(choices), plan, seconds, said, _heading(found, store))


def _towers(request: Request, found: Survey, device: str, given: dict[str, Any]) -> Towers:
    reads_text = found.kind == "image-text" and given.get("model.kind") != "image"
    if request.model is not None:
        return given_towers(request.model, reads_text, given)
    return towers_at_hand(reads_text) or small_towers(reads_text, device, found.records)


def _imported(choices: list[Choice], situation: Situation, progress: Progress) -> tuple[RecordStore, Situation]:
    """The records, imported if they are not a store yet; and the situation with the size of the images."""
    keys = _merged(choices, {**situation.towers.keys, **situation.given})
    keys = {key: value for key, value in keys.items() if key.startswith(("data.", "model."))}
    config = resolve_model_defaults(Config.unchecked(**_tree(keys)).effective())
    try:
        store = records_of(config, import_progress(progress), progress.note)
    except UserError as error:
        if error.code == "record-unreadable":
            error.command = f"`dpfed data import {config.data.path} STORE --skip-broken`, and then --data STORE."
        raise
    return store, dataclasses.replace(situation, size=config.data.size or situation.size)


def _counted(situation: Situation, store: RecordStore, unit: Unit) -> Situation:
    """The situation with N, and with the split that is measured."""
    records = protected_count(store, unit)
    if records < FEWEST:
        raise UserError(
            f"{store.name} has {records:,} training records, of {len(store):,}. Privacy hides each among the others, and below "
            f"{FEWEST} no method learns anything: give more, or use a public model as it is. [automatic-few-training]"
        )
    split = next((split for split in ("validation", "test") if store.count(split)), "none")
    return dataclasses.replace(situation, records=records, held_out=split, budgeted=bool(budgets_of(store)))


def configured(choices: list[Choice], given: dict[str, Any], name: str) -> Config:
    """The configuration of the choices, under what the user sets; choices that this leaves without an effect are dropped.

    Args:
        choices: later ones come on top.
        given: what the user sets, on top of all.
        name: of the run.

    Raises:
        UserError: for a key of the user's that is wrong, or has no effect.
    """
    keys = _merged(choices, given)
    tree = _tree({"name": name} | keys)
    for key in Config.unchecked(**tree).without_effect():
        if key in keys and key not in given:
            put(tree, key, None)
    return parse_config(tree, "the choices")


def _merged(choices: list[Choice], given: dict[str, Any]) -> dict[str, Any]:
    """All keys, those that the user sets on top."""
    return {key: value for choice in choices for key, value in choice.keys.items()} | given


def _as_given(choice: Choice, given: dict[str, Any]) -> Choice:
    """A choice that says which of its keys the user sets."""
    set_ = {key: given[key] for key in choice.keys if key in given and given[key] != choice.keys[key]}
    if not set_:
        return choice
    said = ", ".join(f"{key} = {'its default' if value is None else value}" for key, value in set_.items())
    return dataclasses.replace(choice, why=f"{choice.why}; you set {said}", keys={**choice.keys, **set_})


def _tree(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys as sections; ``None``: the key has its default."""
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        if value is not None:
            put(tree, key, value)
    return tree


def _within(
    minutes: float | None, choices: list[Choice], config: Config, seconds: float, situation: Situation
) -> tuple[list[Choice], Config, float]:
    """The plan shortened to the time that is allowed: a smaller batch first, then fewer steps.

    Raises:
        UserError: if even the smallest plan takes longer.
    """
    allowed, given = 60 * (MINUTES if minutes is None else minutes), situation.given
    asked = f"--minutes {minutes:g}" if minutes is not None else f"{MINUTES:g} minutes"
    batch, steps = config.privacy.batch, config.privacy.steps
    if method_named(config.bounding.method).closed_form:
        if minutes is not None and seconds > allowed:
            raise UserError(
                f"the features of {situation.known_records:,} records take about {duration(seconds)} on this machine, and "
                f"{asked} allows less: allow more, or give a smaller tower with --model. [automatic-minutes-features]"
            )
        return choices, config, seconds
    each = seconds / (batch * steps)
    if "privacy.batch" not in given:
        batch = max(min(batch, _SMALLEST_BATCH), min(batch, int(allowed / (each * steps))))
    if "privacy.steps" not in given:
        steps = max(min(steps, _FEWEST_STEPS), min(steps, int(allowed / (each * batch))))
    if minutes is not None and each * batch * steps > 1.1 * allowed:
        raise UserError(
            f"{steps} steps of {batch:,} records take about {duration(each * batch * steps)} on this machine, and {asked} "
            "allows less; fewer teach nothing. Allow more time, give a smaller model, or smaller images (--set data.size=32). "
            "[automatic-minutes]"
        )
    if (batch, steps) == (config.privacy.batch, config.privacy.steps):
        return choices, config, seconds
    keys = {"privacy.batch": batch, "privacy.steps": steps}
    plan = Choice(
        "plan", f"B = {batch:,}, T = {steps}", f"as much as {asked} allow{'s' if minutes else ''}, timed on noise", keys
    )
    choices = [plan if choice.topic == "plan" else choice for choice in choices]
    return choices, configured(choices, given, config.name), each * batch * steps


def _held_out(config: Config, store: RecordStore) -> int:
    """Records that measure the model; where none do, as many as usually would."""
    split = config.evaluation.split
    return (store.count(split) if split != "none" else 0) or max(1, store.count("train") // HELD_OUT)


def _heading(found: Survey, store: RecordStore) -> str:
    what = "captioned images" if store.kind == "image-text" else "images"
    classes = f" of {found.classes} classes" if found.classes else ""
    held = sum(store.count(split) for split in ("validation", "test"))
    there = f"{store.count('train'):,} to train on" + (f", {held:,} held out" if held else "")
    return f"{found.path.name}: {len(store):,} {what}{classes}; {there}"
