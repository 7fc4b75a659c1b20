"""What a configuration's model expects of its images. torch is imported for a timm model only."""

from __future__ import annotations

import dataclasses

from dpfed.config import Config
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.models.blueprints import blueprint
from dpfed.models.options import SIZE, ModelConfig


def default_size(model: ModelConfig) -> int:
    """Side of the images, pixels, where the user does not say: the architecture's own, or 32."""
    if model.kind == "open_clip":
        return blueprint(model).size
    if model.timm is None:
        return SIZE
    from dpfed.models.timm_blueprints import timm_blueprint  # with torch

    return timm_blueprint(model).size


def image_size(config: Config) -> int:
    """Side of the images, pixels, in a configuration whose size is settled (`dpfed.runs.resolution.settle`)."""
    if config.data.size is None:
        raise ValueError("the size of the images is not settled")
    return config.data.size


def preprocessing_of(config: Config) -> Preprocessing:
    """What the image tower expects; ``data.resize`` wins where it is not ``model``."""
    if config.model.kind == "open_clip":
        found = blueprint(config.model).preprocessing
    elif config.model.timm is None:
        found = Preprocessing()
    else:
        from dpfed.models.timm_blueprints import timm_blueprint  # with torch

        found = timm_blueprint(config.model).preprocessing
    return found if config.data.resize == "model" else dataclasses.replace(found, resize=config.data.resize)
