"""The rules by which dpfed chooses a run's settings. Each rule uses only public numbers.

A rule returns a `Choice`: keys of a configuration, their meaning in a few words, and the reason. The user's keys override the
keys of a choice. docs/automatic.md describes the rules, and docs/results.md has the figures behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.automatic.survey import Survey
from dpfed.automatic.towers import SUGGESTED, Towers
from dpfed.errors import UserError
from dpfed.models.options import PROCEDURAL
from dpfed.privacy.method import METHODS, method_named
from dpfed.privacy.promise import round_up

_SMALL, _LARGER = 32, 64  # side of a small model's images, pixels
HELD_OUT, _MOST_HELD_OUT = 6, 1_000  # dpfed holds out one record in 6, and at most 1,000
# Below this N x epsilon, noise hides the gradients of groups that hold private records only.
_ENOUGH_FOR_GROUPS = 20_000
# Above this N x epsilon, adapters of aligned towers gain more than private moments.
_ENOUGH_FOR_ADAPTERS = 2_000
_MANY_FOR_A_GPU = 50_000  # records
_PART = 5  # a step samples one record in 5
_STEPS = 100


@dataclass(frozen=True)
class Choice:
    """A choice of one or more settings, with the reason for it.

    Attributes:
        topic: Topic of the choice, such as ``"method"``.
        value: Choice, in a few words.
        why: Reason, in a few words.
        keys: Values of configuration keys, by dotted key.
    """

    topic: str
    value: str
    why: str
    keys: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.topic}: {self.value}; {self.why}"


@dataclass(frozen=True)
class Situation:
    """The public facts on which the rules base their choices.

    Attributes:
        survey: Public facts of the data set.
        epsilon: Epsilon of the guarantee.
        towers: Towers before training.
        device: Device: ``"cpu"``, ``"cuda"`` or ``"mps"``.
        public: Path of a public record store; ``None``: the user gave none.
        given: Values of the keys that the user set, by dotted key.
        records: N, number of training records (or protected units); ``None``: not known before the import.
        held_out: Evaluation split, or ``"none"``.
        budgeted: Whether the records have a lifetime budget, which does not cover figures that depend on training labels.
        size: Side of the images that the model reads, pixels.
    """

    survey: Survey
    epsilon: float
    towers: Towers
    device: str
    public: Path | None
    given: dict[str, Any]
    records: int | None = None
    held_out: str = "none"
    budgeted: bool = False
    size: int = _LARGER

    @property
    def reads_text(self) -> bool:
        """Returns whether the model reads captions."""
        kind = self.given.get("model.kind", self.towers.keys["model.kind"])
        return bool(kind != "image")

    @property
    def known_records(self) -> int:
        """N, number of training records (or protected units); it is known only after the import."""
        assert self.records is not None
        return self.records

    @property
    def protected(self) -> str:
        """Word for what the guarantee protects: ``"record"``, or a unit such as ``"patient"``. N is the number of these."""
        by_record = self.given.get("privacy.unit", "user") == "record"
        return "record" if by_record else self.survey.unit_name or "record"

    @property
    def strength(self) -> float:
        """N times epsilon, which determines the gradients' signal-to-noise ratio; batch and number of steps hardly matter."""
        return self.known_records * self.epsilon


def before_import(situation: Situation) -> Iterator[Choice]:
    """Yields the choices that come before an import: data set, held-out records, privacy unit, and size of images."""
    survey = situation.survey
    yield Choice("data", f"{survey.source} at {survey.path}", "given by --data", _data_keys(survey))
    if survey.source != "store":
        yield _held_out(survey)
    if survey.unit_name is not None:
        why = f"the data set names each record's {survey.unit_name}"
        yield Choice("protected", f"each {survey.unit_name}, with all its records", why, {"privacy.unit": "user"})
    if not situation.towers.sized:
        yield _size(survey, situation.device)


def _data_keys(survey: Survey) -> dict[str, Any]:
    return {"data.source": survey.source, "data.path": str(survey.path)}


def _held_out(survey: Survey) -> Choice:
    split = next((split for split in ("validation", "test") if split in survey.splits), None)
    if split is not None:
        return Choice("held out", f"its own {split} split", "the data set has one", {})
    if survey.kind == "image" and survey.classes < 2:
        return Choice("held out", "nothing", "without classes or captions, dpfed cannot evaluate the model", {})
    if survey.records is None:
        return Choice("held out", "nothing", "the number of records is unknown before the import", {})
    count = min(_MOST_HELD_OUT, max(1, survey.records // HELD_OUT))
    why = f"one record in {HELD_OUT}, at most {_MOST_HELD_OUT:,}, for evaluation; the model is not trained on them"
    return Choice("held out", f"{count:,} records", why, {"data.validation": count})


def _size(survey: Survey, device: str) -> Choice:
    if survey.squares:
        return Choice("images", f"{survey.side} pixels", "the size of the images in the store", {"data.size": survey.side})
    seen = f"the shorter side of most is about {survey.side} pixels"
    if survey.side and survey.side <= _SMALL * 2**0.5:
        return Choice("images", f"{_SMALL} pixels", seen, {"data.size": _SMALL})
    where = (
        "this machine has no GPU" if device == "cpu" else "a model without pretrained weights gains little from larger images"
    )
    why = f"{seen}, and {where}" if survey.side else where  # 0: nobody looked at the first images
    return Choice("images", f"{_LARGER} pixels", why, {"data.size": _LARGER})


def after_import(situation: Situation) -> Iterator[Choice]:
    """Yields the choices other than those of `before_import`; they need the number of training records.

    Raises:
        UserError: If the user set a bounding method that does not exist.
    """
    yield _model(situation)
    method = _method(situation)
    yield method
    name = method.keys["bounding.method"]
    if situation.public is not None and "public.path" not in method.keys:
        yield Choice("public", "not used", f"{name} contrasts with no public records; --method public does", {})
    if not method_named(name).closed_form:
        yield from _training(situation, name)
    yield _measured(situation)


def _model(situation: Situation) -> Choice:
    towers = situation.towers
    return Choice("model", towers.said, towers.why, towers.keys)


def small_towers(reads_text: bool, device: str, records: int | None) -> Towers:
    """Returns the small model that is trained if no pretrained tower is available; its initial weights depend on no record.

    Args:
        reads_text: Whether the records have captions.
        device: Device that trains the model.
        records: N, at least approximately; ``None``: unknown.
    """
    advice = f"no pretrained tower is given (--model {SUGGESTED})"
    large = device == "cuda" and (records or 0) >= _MANY_FOR_A_GPU
    encoder, said = ("resnet18", "a ResNet-18") if large else ("cnn", "a small CNN")
    if reads_text:
        keys: dict[str, Any] = {"model.kind": "image-text", "model.image": encoder}
        return Towers(keys, f"{said} and a small text transformer, from random weights", advice)
    keys = {"model.kind": "image", "model.image": encoder, "model.start": PROCEDURAL, "model.features": "pyramid"}
    if not large:
        keys["model.width"] = 16
    said = f"{said} with features of every stage, from a procedural initialisation"
    return Towers(keys, said, f"{advice}; its initial weights come from generated images")


def _method(situation: Situation) -> Choice:
    towers, public, records = situation.towers, situation.public, situation.known_records
    if (given := situation.given.get("bounding.method")) is not None:
        if given not in METHODS:
            raise UserError(f"--method {given}: expected one of {', '.join(METHODS)}. [automatic-method]")
        beside = _beside(public, situation) if given == "public" else {}
        return Choice("method", given, "given by --method", {"bounding.method": given, **beside})
    few = f"{records:,} {situation.protected}s at epsilon {round_up(situation.epsilon)}"
    if towers.pretrained == "aligned" and situation.strength >= _ENOUGH_FOR_ADAPTERS:
        why = f"{few} are enough to train adapters of aligned towers"
        return Choice("method", "DP-GCL (group)", why, {"bounding.method": "group"})
    if towers.pretrained != "none":
        needs = {
            "images": "private training adds little to a pretrained tower, and noisy averages of its features cost least",
            "unaligned": "heads computed from noisy averages of features align towers that were never trained together",
            "aligned": f"{few} are too few to train adapters of aligned towers; noisy averages of features need fewer",
        }
        return Choice("method", "private moments", needs[towers.pretrained], {"bounding.method": "moments"})
    if public is not None and (situation.strength < _ENOUGH_FOR_GROUPS or situation.epsilon <= 1):
        keys = {"bounding.method": "public", **_beside(public, situation)}
        return Choice(
            "method",
            "public contrast (public)",
            f"with {few}, noise hides less if each record is compared with public records",
            keys,
        )
    if not situation.reads_text and situation.strength < _ENOUGH_FOR_GROUPS:
        generated = {"bounding.method": "public", **_beside(public, situation)}
        why = f"with {few}, noise would hide the gradients of private groups, so each record is compared with generated images"
        return Choice("method", "public contrast (public)", why, generated)
    why = f"{few} are enough to train on small groups of private records"
    if situation.strength < _ENOUGH_FOR_GROUPS:
        why = "image-text pairs have no better method without pretrained towers or public records (--public)"
    return Choice("method", "DP-GCL (group)", why, {"bounding.method": "group"})


def _beside(public: Path | None, situation: Situation) -> dict[str, Any]:
    """Returns the keys that set the public records of public contrast; no keys for image-text pairs without a public store."""
    if public is not None:
        return {"public.source": "store", "public.path": str(public)}
    return {} if situation.reads_text else {"public.source": "procedural", "public.centring": 0.0}


def _training(situation: Situation, method: str) -> Iterator[Choice]:
    """Yields the choices for methods that train in steps: groups, batch and steps, optimizer, and views or loss."""
    records, pairs = situation.known_records, situation.reads_text
    adapters = situation.towers.pretrained == "aligned"
    if method_named(method).singleton_groups:
        most, contrast = 512, "one record and 3 public ones in each"
        yield Choice("groups", contrast, "as in dpfed's recipes", {"public.records": 3})
    elif not method_named(method).whole_batch:
        size = 4 if pairs else 8
        most = 2048 if situation.device == "cpu" else 16_384
        why = "pairs learn well in small groups" if pairs else "images need more negatives than captions do"
        yield Choice("groups", f"S = {size}", why, {"bounding.group_size": size})
    else:
        most = 512
    batch = max(2, min(most, records // _PART))
    sampled = f"each step samples one {situation.protected} in {_PART}, at most {most:,}"
    why = f"{sampled}; B and T matter far less than epsilon and N"
    plan = {"privacy.batch": batch, "privacy.steps": _STEPS}
    yield Choice("plan", f"B = {batch:,}, T = {_STEPS}", why, plan)
    if adapters:
        small = situation.size <= _LARGER
        rate, why = (
            (8e-3, f"the best for adapters with images of up to {_LARGER} pixels")
            if small
            else (2e-3, f"not yet measured for adapters with images above {_LARGER} pixels")
        )
    else:
        rate, why = (3e-3 if pairs else 2e-3), "the best rate in dpfed's recipes"
    schedule = "constant" if pairs else "cosine"
    optimizer = {"optimizer.name": "adam", "optimizer.learning_rate": rate, "optimizer.schedule": schedule}
    yield Choice("optimizer", f"Adam, {rate:g}, {schedule}", why, optimizer)
    temperature = 0.1 if adapters else 0.2
    keys: dict[str, Any] = {"objective.temperature": temperature}
    if not pairs:
        keys |= {"objective.augmentations": 0, **_VIEWS}
        yield Choice("views", "random crops, flips and colours", "as in SimCLR, with weaker colour changes", keys)
    else:
        yield Choice("loss", f"InfoNCE, temperature {temperature:g}", "between an image and its captions", keys)


_VIEWS: dict[str, Any] = {
    "views.crop_scale": [0.2, 1.0],
    "views.crop_ratio": [0.75, 1.333],
    "views.flip": 0.5,
    "views.jitter": 0.8,
    "views.grayscale": 0.2,
}


def _measured(situation: Situation) -> Choice:
    """Chooses the evaluation on held-out records."""
    split = situation.held_out
    if split == "none":
        return Choice("measured", "nothing", "no records are held out", {"evaluation.split": "none"})
    keys: dict[str, Any] = {"evaluation.split": split}
    if situation.reads_text:
        return Choice("measured", "retrieval", f"on the {split} split", keys)
    if situation.survey.classes > 1 and situation.budgeted:
        why = "k-NN and a linear probe read training labels, and the records' lifetime budget does not cover that"
        return Choice("measured", "nothing", why, {"evaluation.split": "none"})
    if situation.survey.classes > 1:
        return Choice("measured", "k-NN and a linear probe", f"on the classes of the {split} split", keys)
    why = "the images have fewer than two classes, so dpfed cannot evaluate the model"
    return Choice("measured", "nothing", why, {"evaluation.split": "none"})
