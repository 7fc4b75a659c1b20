"""The configuration of a run as a value; and one with nothing left to choose.

Every field has the field's standard name, a default that is a sensible choice, and a line that says what it does.
"""

from __future__ import annotations

from typing import Any, Literal

import tomli_w
from pydantic import Field, ValidationError, model_validator

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
from dpfed.errors import UserError
from dpfed.privacy.method import method_named
from dpfed.schema.wording import problem


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


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


class ResolvedConfig(Config):
    """What runs take: a configuration in which nothing is left to choose. `dpfed.runs.build.build` makes one.

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
            raise ValueError(f"{', '.join(names)} left to choose: dpfed.runs.build.build does it")
        return self
