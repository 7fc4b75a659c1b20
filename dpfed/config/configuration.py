"""The configuration of a run: a TOML file, checked key by key before anything is touched.

Every field has the field's standard name, a default that is a sensible choice, and a line that says what it does. Unknown keys
are errors that name the nearest valid key, because a misspelt privacy setting must never be ignored.

Also here: a configuration with nothing left to choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, ValidationError, model_validator

from dpfed.config.effects import refuse_without_effect
from dpfed.config.sections import (
    AdaptationConfig,
    BoundingConfig,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PrivacyConfig,
    ProgressConfig,
    PublicConfig,
    Section,
    TextViewsConfig,
    TrainingConfig,
    ViewsConfig,
)
from dpfed.errors import UserError, nearest
from dpfed.files.shipped import find_config
from dpfed.files.toml_file import leaves, put, read_toml, toml_value
from dpfed.paths import path_of
from dpfed.privacy.method import method_named
from dpfed.schema.wording import has_control_characters, problem, shown


class Config(Section):
    """A whole run."""

    name: str = Field(
        "run",
        pattern="^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
        max_length=100,
        description="name of the run, and of its folder in runs/",
    )
    data: DataConfig = DataConfig()
    views: ViewsConfig = ViewsConfig()
    text_views: TextViewsConfig = TextViewsConfig()
    model: ModelConfig = ModelConfig()
    adaptation: AdaptationConfig = AdaptationConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    bounding: BoundingConfig = BoundingConfig()
    public: PublicConfig = PublicConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    progress: ProgressConfig = ProgressConfig()
    diagnostics: Literal["none", "private"] = Field(
        "none", description="'private': loss, clip rate and norms with noise, accounted for"
    )

    def __init__(self, /, **tree: Any) -> None:
        try:
            super().__init__(**tree)
        except ValidationError as error:
            raise UserError(f"{problem(error, type(self))}. [config-value-invalid]") from None

    @property
    def cached_views(self) -> int:
        """V: views of each image whose features are computed once; 0: none, or the image tower is trained."""
        frozen = self.model.external and self.adaptation.of_images(self.model.kind) == "frozen"
        return self.views.cached if frozen else 0

    def dump(self, defaults: bool = True) -> str:
        """The configuration as TOML, with every default spelled out, or with none."""
        tree = _without_none(self.model_dump(mode="json", exclude_defaults=not defaults))
        return tomli_w.dumps({name: section for name, section in tree.items() if defaults or section != {}})


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads a configuration file of a user.

    Args:
        path: a TOML file, or the name of a config that dpfed ships, such as ``quickstart``; a file of that name wins.
        overrides: ``section.key=value`` assignments, applied on top; values are TOML, bare words are text, and no value at all
            takes the key out, so that its default holds.

    Raises:
        UserError: for a missing file, a syntax error, an unknown key, a value out of range, or a key that has no effect.
    """
    if isinstance(overrides, str):
        raise UserError(f"expected a list of assignments, such as [{overrides!r}]. [config-overrides-text]")
    tree = read_toml(find_config(path_of(path, "the configuration")), "config")
    for assignment in overrides or ():
        _assign(tree, assignment)
    return parse_config(tree, str(path))


def parse_config(tree: dict[str, Any], origin: str = "config") -> Config:
    """Checks a user's configuration given as nested dictionaries.

    Raises:
        UserError: naming the first offending key, what it got and what was expected; or the keys that have no effect.
    """
    config = _checked(tree, origin)
    refuse_without_effect(config, origin)
    return config


def read_back(tree: dict[str, Any], origin: str) -> Config:
    """A configuration that dpfed wrote itself, with every default spelled out: keys without an effect may be in it.

    Raises:
        UserError: see `parse_config`.
    """
    return _checked(tree, origin)


def _checked(tree: dict[str, Any], origin: str) -> Config:
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise UserError(
            f"{origin}: expected keys and values, such as {{'privacy': {{'epsilon': 8.0}}}}; got {shown(tree)}. [config-keys]"
        )
    try:
        return Config(**tree)
    except UserError as error:
        raise UserError(f"{origin}: {error.sentence} [config-invalid]") from None


def _assign(tree: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    key = key.strip()
    if has_control_characters(assignment):
        raise UserError(f"{assignment!r} holds a line break or control character: expected section.key=value. [setting-chars]")
    if not equals or not key:
        raise UserError(f"{assignment!r}: expected section.key=value, for example privacy.epsilon=4. [setting-no-equals]")
    if not text.strip() and not _known(key, tree):
        raise UserError(
            f"{assignment!r}: no such key to leave out; {nearest(key, leaves(Config().model_dump()))} [setting-unknown]"
        )
    put(tree, key, toml_value(text) if text.strip() else None, repr(assignment))


def _known(key: str, tree: dict[str, Any]) -> bool:
    """Whether a key is one that a configuration may have, or, of a method's own options, one that is there."""
    level: Any = Config
    for part in key.split("."):
        level = level.model_fields[part].annotation if part in getattr(level, "model_fields", {}) else None
        if level is None:
            return key.startswith("bounding.options.") and key in leaves(tree)
    return True


def first_problem(error: ValidationError) -> str:
    """What is wrong with a value, in a few words: of settings that are no configuration of a run."""
    return problem(error)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


class ResolvedConfig(Config):
    """What runs take: a configuration in which nothing is left to choose. `dpfed.runs.resolution.resolve` makes one.

    Paths are absolute. The size of the images, the way to make them square, the device, the engine, the bias of a loss that has
    one, the digest of an open_clip or timm architecture, and what of its image tower is trained are there.
    """

    @model_validator(mode="after")
    def _nothing_left(self) -> ResolvedConfig:
        own_engine = not method_named(self.bounding.method).picks_engine
        left = {
            "data.size": self.data.size is None,
            "data.resize": self.data.resize == "model",
            "training.device": self.training.device == "auto",
            "bounding.engine": self.bounding.engine == "auto" and not own_engine,
            "objective.bias": self.objective.loss.bias is not None and self.objective.bias is None,
            "model.digest": (self.model.external or self.model.pretrained_text) and self.model.digest is None,
            "adaptation.image": self.model.external and self.adaptation.image == "auto",
        }
        if names := [name for name, is_left in left.items() if is_left]:
            raise ValueError(f"{', '.join(names)} left to choose: dpfed.runs.resolution.resolve does it")
        return self
