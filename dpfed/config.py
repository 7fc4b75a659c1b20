"""The configuration of a run: a TOML file, checked key by key before anything is touched.

Every field has the field's standard name, a default that is a sensible choice, and a line that says what it does. Unknown keys
are errors that name the nearest valid key, because a misspelt privacy setting must never be ignored.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, ValidationError, model_validator

from dpfed.dotted_keys import put
from dpfed.errors import UserError, nearest
from dpfed.sections import (
    AdaptationConfig,
    BoundingConfig,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PrivacyConfig,
    Section,
    TextViewsConfig,
    TrainingConfig,
    ViewsConfig,
)
from dpfed.shipped import find_config
from dpfed.toml_file import read_toml


class Config(Section):
    """A whole run."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9._-]+$", description="of the run, and of its folder in runs/")
    data: DataConfig = DataConfig()
    views: ViewsConfig = ViewsConfig()
    text_views: TextViewsConfig = TextViewsConfig()
    model: ModelConfig = ModelConfig()
    adaptation: AdaptationConfig = AdaptationConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    bounding: BoundingConfig = BoundingConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    diagnostics: Literal["none", "raw"] = Field("none", description="'raw' writes private figures and marks the card")

    @model_validator(mode="after")
    def _one_target(self) -> Config:
        if self.objective.name == "byol" and self.training.sharding != "none":
            raise ValueError("the target network of objective.name = 'byol' is not sharded; set training.sharding = 'none'")
        return self

    @model_validator(mode="after")
    def _adapted(self) -> Config:
        if self.model.kind != "open_clip" and self.adaptation != AdaptationConfig():
            raise ValueError(f"[adaptation] is for model.kind = 'open_clip'; '{self.model.kind}' is trained in full")
        return self

    def dump(self) -> str:
        """The configuration as TOML, with every default spelled out."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))


def load_config(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Reads a configuration file.

    Args:
        path: a TOML file, or the name of a config that dpfed ships, such as ``quickstart``; a file of that name wins.
        overrides: ``section.key=value`` assignments, applied on top; values are TOML, bare words are text, and no value at all
            takes the key out, so that its default holds.

    Raises:
        UserError: for a missing file, a syntax error, an unknown key or a value out of range.
    """
    tree = read_toml(find_config(path), "config")
    for assignment in overrides or []:
        _assign(tree, assignment)
    return parse_config(tree, str(path))


def parse_config(tree: dict[str, Any], origin: str = "config") -> Config:
    """Checks a configuration given as nested dictionaries.

    Raises:
        UserError: naming the first offending key, what it got and what was expected.
    """
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise UserError(_explain(error, origin)) from None


def _assign(tree: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {assignment!r}: expected section.key=value, for example privacy.epsilon=4.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    put(tree, key.strip(), value if text.strip() else None, f"--set {assignment!r}")


def _explain(error: ValidationError, origin: str) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "config"
    if first["loc"][:2] == ("bounding", "options") and len(first["loc"]) > 2:
        return f"{origin}: 'bounding.options.{first['loc'][2]}': expected a finite number, true, false or a text."
    if first["type"] == "extra_forbidden":
        section: Any = Config
        for part in first["loc"][:-1]:
            section = section.model_fields[part].annotation
        return f"{origin}: unknown key '{where}'; {nearest(str(first['loc'][-1]), section.model_fields)}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "too_short":
        message = "give at least one"
    got = "" if isinstance(first["input"], dict) else f"; got {first['input']!r}"  # a whole section says nothing
    return f"{origin}: '{where}': {message[0].lower()}{message[1:]}{got}."


def first_problem(error: ValidationError) -> str:
    """What is wrong with a value, in a few words: of settings that are no configuration of a run."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    return f"{'.'.join(map(str, first['loc']))} = {first['input']!r}: {message[0].lower()}{message[1:]}"


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
