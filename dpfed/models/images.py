"""Size and preprocessing of the images that a model expects. torch is imported for encoders of timm and torchvision only."""

from __future__ import annotations

import dataclasses

from dpfed.data.options import Resize
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.models.blueprints import blueprint
from dpfed.models.options import SIZE, ModelConfig


def default_size(model: ModelConfig) -> int:
    """Returns the side of the images, pixels, if the user sets none: the architecture's own, or 32.

    Raises:
        UserError: If the architecture or its weights are unknown, or the architecture reads images that are not square.
    """
    if model.kind == "open_clip":
        return blueprint(model).size
    if model.timm is None:
        return SIZE
    from dpfed.models.timm_blueprints import timm_blueprint  # with torch

    return timm_blueprint(model).size


def preprocessing_of(model: ModelConfig, resize: Resize = "model") -> Preprocessing:
    """Returns the preprocessing that the image tower expects.

    Args:
        model: Configuration of the model.
        resize: How images are made square; ``model``: as the tower's weights expect.

    Raises:
        UserError: If timm's weights expect borders of the mean colour and `resize` is ``model``, or if the architecture or its
            weights are unknown or malformed.
    """
    if model.kind == "open_clip":
        preprocessing = blueprint(model).preprocessing
    elif model.timm is None:
        preprocessing = Preprocessing()
    else:
        from dpfed.models.timm_blueprints import timm_blueprint  # with torch

        preprocessing = timm_blueprint(model).preprocessing
        if preprocessing.resize == "pad" and resize == "model":
            raise UserError(
                f"the weights of {model.image} were trained on images with borders of the mean colour, but dpfed makes "
                "black ones: set data.resize to pad, crop or squash. [weights-border]"
            )
    return preprocessing if resize == "model" else dataclasses.replace(preprocessing, resize=resize)
