"""Which keys of a configuration have an effect beside the others: one that has none is a mistake, and is refused.

Whoever sets `data.path` and forgets `data.source` would otherwise train on generated shapes without noticing. Every key of the
schema stands in `_ALWAYS` or in a rule, once at least; a test sees to it. A key counts as given where its value is not the
default, so that a resolved configuration, which spells out every default, can be read again. Intervals longer than the run and
limits that are not reached do what they say, and so have an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from dpfed.config.configuration import Config
from dpfed.errors import UserError
from dpfed.models.options import PROCEDURAL
from dpfed.objectives import keys_of_losses
from dpfed.privacy.method import Method, method_named
from dpfed.schema.wording import shown


class Rule(NamedTuple):
    """When some keys have an effect.

    Attributes:
        keys: with spaces between them.
        because: the keys whose values decide, likewise.
        holds: whether the keys have an effect in a configuration.
        remedy: what would give them one.
    """

    keys: str
    because: str
    holds: Callable[[Config], bool]
    remedy: str


def needs(keys: str, key: str, *values: str, why: str = "") -> Rule:
    """Keys that have an effect only where another has one of a few values."""
    remedy = f"{why}set {key} = {' or '.join(map(repr, values))}"
    return Rule(keys, key, lambda c: attrgetter(key)(c) in values, remedy)


def _method(c: Config) -> Method:
    return method_named(c.bounding.method)


def _of_losses() -> Iterator[Rule]:
    """A loss's keys have an effect with the losses that have them."""
    of: dict[tuple[str, ...], list[str]] = {}
    for key, losses in keys_of_losses().items():
        of.setdefault(losses, []).append(f"objective.{key}")
    for losses, keys in of.items():
        yield needs(" ".join(keys), "objective.name", *losses)


def _imports(c: Config) -> bool:
    return c.data.source not in ("store", *_GENERATED)


def _finds_store(c: Config) -> bool:
    """Whether `data.path` is a record store, although the source is not called one."""
    from dpfed.paths import is_store

    if c.data.path is None or c.data.source in ("store", *_FROM_NOTHING):
        return False
    try:
        return is_store(Path(c.data.path).expanduser())
    except (OSError, RuntimeError):  # opening it will say what is wrong
        return False


def _writes_store(c: Config) -> bool:
    if c.data.source in _GENERATED or (_method(c).public_records and c.public.source in _FROM_NOTHING):
        return True
    if c.model.start == PROCEDURAL:
        return True
    return _imports(c) and not _finds_store(c)


def _measures(c: Config, *tasks: str) -> bool:
    return not c.evaluation.tasks or not set(tasks).isdisjoint(c.evaluation.tasks)


_IMPORTER = "set data.source to the name of an importer"
_FROM_NOTHING = ("shapes", "procedural")  # sources that are generated, and read nothing
_GENERATED = ("scenes", *_FROM_NOTHING)
_READERS = ("image-text", "open_clip")  # kinds of models that read captions

_ALWAYS = """
    name data.source data.size data.resize views.crop_scale views.crop_ratio views.flip views.grayscale views.blur model.kind
    model.start objective.name bounding.method bounding.options bounding.microbatch privacy.unit
    privacy.seed privacy.not_covered
    training.device training.precision
    training.checkpoint_every training.keep evaluation.split diagnostics
"""  # of bounding.options, every method refuses those that it does not have
_RULES = (
    Rule(
        "data.path",
        "data.source",
        lambda c: c.data.source not in _FROM_NOTHING,
        "set data.source = 'store' or to the name of an importer",
    ),
    needs("data.records", "data.source", *_FROM_NOTHING),
    needs("data.half", "data.source", "shapes", "scenes"),
    Rule("data.validation data.test", "data.source", _imports, f"{_IMPORTER} (other records are divided already)"),
    Rule(
        "data.public",
        "data.source",
        lambda c: _imports(c) or c.data.source == "scenes",
        f"{_IMPORTER} (generated records are public, and a store says itself whether it is)",
    ),
    Rule(
        "data.validation data.test data.public",
        "data.path",
        lambda c: not _finds_store(c),
        "there is a record store, which is made already; give what it was imported from",
    ),
    Rule("data.stores", "data.source data.path", _writes_store, "no store is written; set data.source to an importer"),
    Rule(
        "views.jitter",
        "views.brightness views.contrast views.saturation views.hue",
        lambda c: any((c.views.brightness, c.views.contrast, c.views.saturation, c.views.hue)),
        "give one of them a strength",
    ),
    Rule(
        "views.brightness views.contrast views.saturation views.hue",
        "views.jitter",
        lambda c: c.views.jitter > 0,
        "set views.jitter, the probability of colour jitter",
    ),
    Rule("views.saturation views.hue", "views.grayscale", lambda c: c.views.grayscale < 1, "no image has a colour; lower it"),
    Rule("views.blur_sigma", "views.blur", lambda c: c.views.blur > 0, "set views.blur, the probability of blur"),
    Rule(
        "views.cached",
        "adaptation.image model.image model.kind",
        lambda c: c.model.external and c.adaptation.of_images(c.model.kind) == "frozen",
        "the image tower is trained, so its features change; set adaptation.image = 'frozen'",
    ),
    needs("text_views.sentence_swap text_views.word_swap text_views.word_delete", "model.kind", *_READERS),
    Rule(
        "text_views.sentence_swap text_views.word_swap text_views.word_delete",
        "views.cached model.text",
        lambda c: not (c.cached_views and c.model.pretrained_text),
        "features of the captions are computed once",
    ),
    needs("model.architecture model.tokenizer adaptation.text adaptation.text_layers", "model.kind", "open_clip"),
    Rule(
        "model.digest",
        "model.kind model.image model.text",
        lambda c: c.model.external or c.model.pretrained_text is not None,
        "a run writes it",
    ),
    Rule(
        "model.weights adaptation.image adaptation.rank adaptation.alpha adaptation.image_layers",
        "model.kind model.image",
        lambda c: c.model.external,
        "set model.kind = 'open_clip' or model.image = 'timm/NAME'",
    ),
    needs(
        "model.image model.stem model.width model.features model.normalisation model.weight_standardisation model.anchors "
        "model.anchor_count model.text model.text_width model.text_layers model.text_heads model.vocabulary model.context "
        "model.embedding model.head_hidden",
        "model.kind",
        "image",
        "image-text",
        why="an open_clip architecture has its own; ",
    ),
    Rule(
        "model.width model.features model.normalisation model.weight_standardisation model.anchors model.anchor_count",
        "model.image",
        lambda c: c.model.timm is None,
        "a timm encoder has its own; set model.image = 'cnn' or 'resnet18'",
    ),
    Rule("model.weights", "model.start", lambda c: c.model.start is None, "the start has the weights; choose one of both"),
    Rule("model.start_digest", "model.start", lambda c: c.model.start is not None, "set model.start"),
    needs("model.stem", "model.image", "resnet18", "resnet34", "resnet50"),
    needs("model.anchors model.anchor_count", "model.normalisation", "batch"),
    needs(
        "model.text model.text_width model.text_layers model.text_heads model.vocabulary model.context",
        "model.kind",
        "image-text",
    ),
    Rule(
        "model.text_width model.text_layers model.text_heads model.vocabulary model.context",
        "model.text",
        lambda c: c.model.pretrained_text is None,
        "a pretrained text tower has its own; set model.text = 'transformer'",
    ),
    needs("model.head_hidden", "model.kind", "image"),
    Rule(
        "adaptation.rank adaptation.alpha",
        "adaptation.image adaptation.text",
        lambda c: c.model.timm is not None or "lora" in (c.adaptation.of_images(c.model.kind), c.adaptation.text),
        "set one of them to 'lora'",
    ),
    Rule(
        "adaptation.rank adaptation.alpha adaptation.image_layers",
        "model.image adaptation.image",
        lambda c: c.model.timm is None or c.adaptation.image == "lora",
        "a timm encoder is trained in full by default; set adaptation.image = 'lora'",
    ),
    Rule(
        "adaptation.image_layers",
        "adaptation.image",
        lambda c: c.adaptation.of_images(c.model.kind) == "lora",
        "set adaptation.image = 'lora'",
    ),
    needs("adaptation.text_layers", "adaptation.text", "lora"),
    *_of_losses(),
    Rule(
        "bounding.group_size bounding.max_group_size",
        "bounding.method",
        lambda c: not _method(c).whole_batch,
        "it contrasts the whole batch; set bounding.method = 'group'",
    ),
    Rule(
        "bounding.group_size bounding.max_group_size",
        "bounding.method",
        lambda c: not _method(c).singleton_groups,
        "every record forms its own group; set bounding.method = 'group'",
    ),
    Rule(
        "public.records public.centring public.source public.path public.digest public.generated public.half",
        "bounding.method",
        lambda c: _method(c).public_records,
        "no public record joins a group; set bounding.method = 'public'",
    ),
    needs("public.path public.digest", "public.source", "store"),
    needs("public.generated", "public.source", *_FROM_NOTHING),
    needs("public.half", "public.source", "shapes"),
    Rule(
        "bounding.max_batch",
        "bounding.method",
        lambda c: _method(c).capped,
        "its batch needs no cap; set bounding.method = 'batch', 'sample' or 'logit'",
    ),
    Rule(
        "bounding.engine bounding.pass_records",
        "bounding.method",
        lambda c: _method(c).picks_engine,
        "it has its own engine; set bounding.method = 'group', 'public' or 'none'",
    ),
    Rule(
        "bounding.clip_norm",
        "bounding.clipping",
        lambda c: c.bounding.clipping != "automatic",
        "every gradient is normalised; set bounding.clipping = 'fixed'",
    ),
    needs("bounding.stability", "bounding.clipping", "automatic"),
    needs("progress.share progress.phase progress.quantile progress.loss_range", "diagnostics", "private"),
    Rule(
        "bounding.clip_norm bounding.clipping privacy.epsilon privacy.noise_multiplier privacy.noise privacy.delta "
        "privacy.accountant",
        "bounding.method",
        lambda c: _method(c).private,
        "nothing is clipped, added or promised; set bounding.method = 'group'",
    ),
    Rule(
        "privacy.accountant",
        "bounding.method",
        lambda c: len(_method(c).accountants) > 1,
        "its samples are accounted for by RDP alone; set bounding.method = 'group'",
    ),
    needs("privacy.per_unit", "privacy.unit", "user"),
    Rule(
        "views.cached privacy.batch privacy.steps bounding.clip_norm bounding.clipping bounding.group_size optimizer.name "
        "optimizer.learning_rate optimizer.weight_decay optimizer.ema optimizer.momentum optimizer.warmup optimizer.schedule "
        "text_views.sentence_swap text_views.word_swap text_views.word_delete "
        "adaptation.rank adaptation.alpha adaptation.image_layers adaptation.text_layers adaptation.text",
        "bounding.method",
        lambda c: not _method(c).closed_form,
        "every record takes part in both steps, and no gradient is taken; set bounding.method = 'group'",
    ),
    needs("optimizer.momentum", "optimizer.name", "sgd", "lars"),
    Rule(
        "optimizer.warmup",
        "optimizer.warmup optimizer.schedule",
        lambda c: c.optimizer.warmup != 1 or c.optimizer.schedule != "constant",
        "the first step has the full learning rate then; give 2 or more",
    ),
    Rule(
        "optimizer.schedule",
        "optimizer.warmup privacy.steps",
        lambda c: c.optimizer.warmup + 1 < c.privacy.steps,
        "it begins after the warm-up; leave at least two steps for it",
    ),
    needs(
        "evaluation.tasks evaluation.match evaluation.templates evaluation.every evaluation.records evaluation.bank",
        "evaluation.split",
        "validation",
        "test",
    ),
    needs("evaluation.match evaluation.templates", "model.kind", *_READERS),
    Rule("evaluation.match", "evaluation.tasks", lambda c: _measures(c, "retrieval"), "add 'retrieval'"),
    Rule("evaluation.templates", "evaluation.tasks", lambda c: _measures(c, "zero_shot"), "add 'zero_shot'"),
    Rule("evaluation.bank", "evaluation.tasks", lambda c: _measures(c, "knn", "linear"), "add 'knn' or 'linear'"),
)


def deciding(key: str) -> tuple[str, ...]:
    """The other keys that decide whether one has an effect; none: it always has."""
    found = [other for rule in _RULES if key in rule.keys.split() for other in rule.because.split()]
    return tuple(other for other in dict.fromkeys(found) if other != key)


def without_effect(config: Config) -> dict[str, Rule]:
    """The keys, given or not, that nothing depends on in a configuration, each with the rule that says so."""
    found: dict[str, Rule] = {}
    for rule in _RULES:
        if not rule.holds(config):
            found |= {key: rule for key in rule.keys.split() if key not in found}
    return found


def refuse_without_effect(config: Config, origin: str = "config") -> None:
    """Refuses keys that are given and have no effect.

    Args:
        config: as the user wrote it, or resolved.
        origin: of the configuration, for the message.

    Raises:
        UserError: naming the keys, why they have no effect, and what would give them one.
    """
    idle = {key: rule for key, rule in without_effect(config).items() if _given(config, key)}
    if idle:
        rules = list(dict.fromkeys(idle.values()))
        said = (_sentence(config, rule, [key for key in idle if idle[key] is rule]) for rule in rules)
        raise _refusal(origin, said, idle)
    warmup, steps = config.optimizer.warmup, config.privacy.steps
    if warmup and warmup > steps:
        raise UserError(
            f"{origin}: optimizer.warmup = {warmup} exceeds privacy.steps = {steps}: lower it, or raise them. [config-warmup]"
        )


def refuse_unmeasured(config: Config, tasks: tuple[str, ...]) -> None:
    """Refuses settings of tasks that the records do not allow, where the configuration leaves the tasks to them.

    Args:
        config: of the run.
        tasks: that are measured.

    Raises:
        UserError: see `refuse_without_effect`.
    """
    if config.evaluation.tasks or not tasks:
        return
    measured = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"tasks": tasks})})
    idle = [key for key in without_effect(measured) if key.startswith("evaluation.") and _given(config, key)]
    if idle:
        said = f"{_listed(idle)} no effect with these records, which allow {' and '.join(tasks)} alone"
        raise _refusal(config.name, [f"{said}: choose others, or leave {_them(idle)} out"], idle)


def effective(config: Config) -> Config:
    """The configuration with every key that has no effect at its default."""
    changes: dict[str, dict[str, Any]] = {}
    for key in without_effect(config):
        section, name = key.split(".")
        changes.setdefault(section, {})[name] = _default(config, key)
    return config.model_copy(
        update={section: getattr(config, section).model_copy(update=values) for section, values in changes.items()}
    )


def _default(config: Config, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return type(attrgetter(section)(config) if section else config).model_fields[name].default


def _given(config: Config, key: str) -> bool:
    return attrgetter(key)(config) != _default(config, key)


def _sentence(config: Config, rule: Rule, keys: list[str]) -> str:
    def value(key: str) -> str:
        return shown(attrgetter(key)(config)) + ("" if _given(config, key) else " (the default)")

    why = " and ".join(f"{key} = {value(key)}" for key in rule.because.split())
    return f"{_listed(keys)} no effect with {why}: {rule.remedy}, or leave {_them(keys)} out"


def _listed(keys: list[str]) -> str:
    return f"{' and '.join(map(repr, keys))} {'has' if len(keys) == 1 else 'have'}"


def _them(keys: list[str]) -> str:
    return "it" if len(keys) == 1 else "them"


def _refusal(origin: str, sentences: Iterable[str], keys: Iterable[str]) -> UserError:
    options = " ".join(f"--set {key}=" for key in keys)
    return UserError(f"{origin}: {'; '.join(sentences)}. [setting-idle]", command=f"On the command line, that is {options}")
