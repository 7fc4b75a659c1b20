"""Divides a model into its frozen towers and the rest, which takes the towers' features as input."""

from __future__ import annotations

import copy
from typing import NamedTuple

from torch import nn

from dpfed.errors import UserError
from dpfed.models.contrastive import SimCLRModel, TwoTowerModel
from dpfed.models.text_tower import TextTower
from dpfed.models.towers import ClipModel


class Towers(NamedTuple):
    """The frozen towers of a model.

    Attributes:
        image: The image tower.
        image_width: F, number of features of an image.
        text: The text tower; of a `ClipModel`, the whole open_clip model. ``None``: the model has no text tower, or trains it.
        text_width: F_t, number of features of a text; 0 if `text` is ``None``.
    """

    image: nn.Module
    image_width: int
    text: nn.Module | None = None
    text_width: int = 0


def frozen_towers(model: nn.Module) -> Towers:
    """Returns a model's frozen towers. Training does not change them, so each record's features can be computed once.

    Args:
        model: Image-text model or `SimCLRModel`, with a frozen image tower.

    Raises:
        UserError: If the image tower is trained, the model is of another kind, or a tower has no attribute ``features_dim``.
    """
    if isinstance(model, ClipModel):
        width, clip = int(model.model_cfg["embed_dim"]), model.clip
        towers = Towers(clip.visual, width)
        text = [p for name, p in clip.named_parameters() if not name.startswith(("visual.", "logit_", "text_decoder."))]
        if not any(parameter.requires_grad for parameter in text):
            towers = Towers(clip.visual, width, clip, width)
    elif isinstance(model, TwoTowerModel):
        text_tower = model.text_encoder
        towers = Towers(model.image_encoder, _width(model.image_encoder))
        if isinstance(text_tower, TextTower):
            towers = towers._replace(text=text_tower.backbone, text_width=text_tower.backbone.width)
        elif not any(parameter.requires_grad for parameter in text_tower.parameters()):
            towers = towers._replace(text=text_tower, text_width=_width(text_tower))
    elif type(model) is SimCLRModel:
        towers = Towers(model.encoder, _width(model.encoder))
    else:
        raise UserError(
            f"features of {type(model).__name__} cannot be computed in advance: leave views.cached out. [features-model]"
        )
    if any(parameter.requires_grad for parameter in towers.image.parameters()):
        raise UserError("training changes the image tower's features: set adaptation.image = 'frozen'. [features-trained]")
    return towers


def from_features(model: nn.Module) -> nn.Module:
    """Returns the part of a model that follows its frozen towers. The model itself does not change.

    Args:
        model: Model with frozen towers; see `frozen_towers`.

    Returns:
        A model that uses the same parameters. It reads the views ``{"image": (S, V, F), "text": ...}`` of S records: V image
        views and W text views of each record. Text views are features ``(S, W, F_t)`` if the text tower is frozen. If the text
        tower is trained, a text view has L tokens: ``(S, W, L)``.

    Raises:
        UserError: If `frozen_towers` raises one.
    """
    towers = frozen_towers(model)
    rest = copy.copy(model)
    rest._modules = dict(model._modules)
    if isinstance(rest, ClipModel):
        rest.__dict__["features"] = nn.Identity()
        if towers.text is not None:
            rest.__dict__["text_features"] = nn.Identity()
    elif isinstance(rest, TwoTowerModel):
        rest.image_encoder = nn.Identity()
        if towers.text is not None:
            rest.text_encoder = rest.text_encoder.head if isinstance(rest.text_encoder, TextTower) else nn.Identity()
    else:
        rest.encoder = nn.Identity()
    return rest


def _width(encoder: nn.Module) -> int:
    """Returns the number of features that an encoder computes, its attribute ``features_dim``.

    Raises:
        UserError: If the encoder has no such attribute, which a user's own encoder may lack.
    """
    width = getattr(encoder, "features_dim", None)
    if not isinstance(width, int):
        raise UserError(
            f"features of {type(encoder).__name__} cannot be computed in advance: give this encoder an attribute features_dim, "
            "the number of its features. [features-width]"
        )
    return width
