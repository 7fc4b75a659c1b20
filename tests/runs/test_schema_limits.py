"""Every number of the schema at its smallest, at its largest and just beyond: a sentence, or a run that trains.

The cases are made from the schema, so a new key is tried without a line here. A run may be refused before its first step, in a
sentence; once a step is charged, it ends.
"""

from __future__ import annotations

import json
import math
import types
from typing import Any, get_args, get_origin

import pytest

from dpfed.config import Config, parse_config
from dpfed.errors import UserError
from dpfed.files.toml_file import put
from dpfed.runs.pretraining import pretrain

# With these, a key has an effect; a key that needs another kind of model is tried in its own tests.
GIVEN = {
    "views.brightness": {"views.jitter": 0.5},
    "views.contrast": {"views.jitter": 0.5},
    "views.saturation": {"views.jitter": 0.5},
    "views.hue": {"views.jitter": 0.5},
    "views.blur_sigma": {"views.blur": 1.0},
    "model.head_hidden": {"model.kind": "image", "evaluation.tasks": []},
    "model.anchor_count": {"model.normalisation": "batch"},
    "objective.bias": {"objective.name": "siglip"},
    "objective.redundancy": {"objective.name": "barlow_twins"},
    "bounding.stability": {"bounding.clipping": "automatic"},
    "bounding.max_batch": {"bounding.method": "batch", "bounding.engine": "auto", "bounding.group_size": None},
    "bounding.pass_records": {"bounding.engine": "layerwise"},
    "privacy.noise_multiplier": {"privacy.epsilon": None},
    "privacy.per_unit": {"privacy.unit": "user"},
    "progress.share": {"diagnostics": "private"},
    "progress.phase": {"diagnostics": "private"},
    "progress.quantile": {"diagnostics": "private", "bounding.clipping": "adaptive"},
    "progress.loss_range": {"diagnostics": "private"},
    "optimizer.momentum": {"optimizer.name": "sgd"},
    "evaluation.bank": {"evaluation.tasks": ["knn"]},
    "public": {"bounding.method": "public", "bounding.group_size": None, "public.source": "shapes", "public.generated": 64},
    "adaptation": {"model.kind": "open_clip"},
}
# What a machine of tests has no time or memory for; that just beyond is refused is tried all the same.
TOO_LARGE = {
    "data.records",
    "data.size",
    "model.width",
    "model.text_width",
    "model.text_layers",
    "model.text_heads",
    "model.context",
    "model.vocabulary",
    "model.embedding",
    "model.head_hidden",
    "model.anchor_count",
    "objective.augmentations",
    "public.records",
    "public.generated",
    "bounding.pass_records",
}
ELSEWHERE = {"adaptation", "views.cached", "data.validation", "data.test", "data.records", "bounding.options"}
HUGE = 10**19


def numbers() -> list[tuple[str, type, dict[str, Any]]]:
    """Every key that is a number, or a pair of numbers, with its limits."""
    keys = []
    for section, field in Config.model_fields.items():
        for key, inner in getattr(field.annotation, "model_fields", {}).items():
            kinds = [part for part in _parts(inner.annotation) if part in (int, float)]
            if not kinds or bool in _parts(inner.annotation):
                continue
            limits = {
                name: getattr(rule, name) for rule in inner.metadata for name in ("ge", "gt", "le", "lt") if hasattr(rule, name)
            }
            keys.append((f"{section}.{key}", kinds[0], limits))
    return keys


def _parts(annotation: Any) -> list[Any]:
    if get_origin(annotation) is None and not isinstance(annotation, types.UnionType):
        return [annotation]
    return [part for inner in get_args(annotation) for part in _parts(inner)]


def ends(kind: type, limits: dict[str, Any]) -> list[Any]:
    """The smallest and largest values, and those just beyond them; where there is no limit, what nobody means."""
    if kind is int:
        low = limits.get("ge", -HUGE)
        high = limits.get("le", HUGE)
        return [low, low - 1, high, high + 1]
    low, high = (float(limits.get(a, limits.get(b, default))) for a, b, default in (("ge", "gt", -1e300), ("le", "lt", 1e300)))
    beyond = [math.nextafter(low, -math.inf), math.nextafter(high, math.inf)]
    inside = [math.nextafter(low, math.inf), math.nextafter(high, -math.inf)]
    return [low, high, *inside, *beyond, 0.0, 1e-300, 1e300]


def _tree(tiny: dict, key: str, value: Any) -> dict:
    tree = json.loads(json.dumps(tiny))
    section = key.partition(".")[0]
    tree["privacy"]["steps"] = 3
    tree["evaluation"] |= {"every": 0, "records": 30}
    for name, given in {**GIVEN.get(section, {}), **GIVEN.get(key, {}), key: value}.items():
        put(tree, name, given)
    return tree


def _cases() -> list[Any]:
    cases = []
    for key, kind, limits in numbers():
        section = key.partition(".")[0]
        if key in ELSEWHERE or section in ELSEWHERE:
            continue
        for value in dict.fromkeys(ends(kind, limits)):
            too_large = key in TOO_LARGE and value == ends(kind, limits)[2 if kind is int else 1]
            if not too_large:
                cases.append(pytest.param(key, value, id=f"{key}={value:g}"))
    for key in ("crop_scale", "crop_ratio", "blur_sigma"):
        for low, high in ((1e-300, 1.0), (1e-4, 1.0), (0.01, 100.0), (1e-3, 1e3), (1.0, 1e300), (1e-300, 1e300)):
            cases.append(pytest.param(f"views.{key}", [low, high], id=f"views.{key}={low:g}..{high:g}"))
    return cases


def test_the_schema_has_numbers_and_each_is_tried():
    tried = {case.values[0] for case in _cases()}
    left = {key for key, _, _ in numbers()} - tried
    assert {"optimizer.learning_rate", "objective.temperature", "privacy.batch"} <= tried
    assert all(key in ELSEWHERE or key.partition(".")[0] in ELSEWHERE for key in left)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value"), _cases())
def test_a_number_at_its_limits_is_refused_or_trains(tiny, tmp_path, key, value):
    _refused_or_trained(_tree(tiny, key, value), tmp_path)


QUICK = [
    case
    for case in _cases()
    if case.values[0] in ("optimizer.learning_rate", "objective.temperature", "bounding.clip_norm", "optimizer.weight_decay")
]


@pytest.mark.parametrize(("key", "value"), QUICK)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_parts_of_a_step_are_refused_or_train(tiny, tmp_path, key, value, optimizer):
    tree = _tree(tiny, key, value)
    tree["optimizer"]["name"] = optimizer
    tree["evaluation"] = {"split": "none"}
    _refused_or_trained(tree, tmp_path)


def _refused_or_trained(tree: dict, folder) -> None:
    try:
        config = parse_config(tree)
        run = pretrain(config, folder / "run")
    except UserError as refusal:
        ledger = folder / "run" / "ledger.jsonl"
        assert not ledger.exists() or len(ledger.read_text().splitlines()) == 1, f"refused after a charge: {refusal}"
        assert refusal.code
        return
    assert run.finished
