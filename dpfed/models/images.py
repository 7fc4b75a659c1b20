"""What a model expects of its images. torch is imported for a timm model only."""

from __future__ import annotations

import dataclasses

from dpfed.data.options import Resize
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
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


def preprocessing_of(model: ModelConfig, resize: Resize = "model") -> Preprocessing:
    """What the image tower expects; a `resize` other than ``model`` wins."""
    if model.kind == "open_clip":
        found = blueprint(model).preprocessing
    elif model.timm is None:
        found = Preprocessing()
    else:
        from dpfed.models.timm_blueprints import timm_blueprint  # with torch

        found = timm_blueprint(model).preprocessing
        if found.resize == "pad" and resize == "model":
            raise UserError(
                f"the weights of {model.image} were trained on images with borders of the mean colour, and dpfed makes "
                "black ones: set data.resize to pad, crop or squash. [weights-border]"
            )
    return found if resize == "model" else dataclasses.replace(found, resize=resize)
