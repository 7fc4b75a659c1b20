"""The configuration of a run: its schema, and how it is read and checked."""

from dpfed.config.configuration import Config
from dpfed.config.reading import first_problem, load_config, parse_config, read_back
from dpfed.config.sections import (
    AdaptationConfig,
    BoundingConfig,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PrivacyConfig,
    PublicConfig,
    Section,
    TextViewsConfig,
    TrainingConfig,
    ViewsConfig,
)

__all__ = [
    "AdaptationConfig",
    "BoundingConfig",
    "Config",
    "DataConfig",
    "EvaluationConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "PrivacyConfig",
    "PublicConfig",
    "Section",
    "TextViewsConfig",
    "TrainingConfig",
    "ViewsConfig",
    "first_problem",
    "load_config",
    "parse_config",
    "read_back",
]
