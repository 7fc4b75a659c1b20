"""Which parts of a model are frozen towers, and the rest of the model, which continues from their features."""

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
        image_width: F, dimensions of its features.
        text: The text tower; ``None``: there is none, or it is trained.
        text_width: F_t.
    """

    image: nn.Module
    image_width: int
    text: nn.Module | None = None
    text_width: int = 0


def frozen_towers(model: nn.Module) -> Towers:
    """The towers of a model whose features may be computed once.

    Raises:
        UserError: If the image tower is trained, or the model is of another kind.
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
        raise UserError(f"features of {type(model).__name__} cannot be computed once: leave views.cached out. [features-model]")
    if any(parameter.requires_grad for parameter in towers.image.parameters()):
        raise UserError("training changes the image tower's features: set adaptation.image = 'frozen'. [features-trained]")
    return towers


def from_features(model: nn.Module) -> nn.Module:
    """The rest of a model behind its frozen towers.

    Args:
        model: See `frozen_towers`.

    Returns:
        A model with the same parameters, to which ``{"image": (S, V, F), "text": ...}`` are views: text is features
        ``(S, W, F_t)`` of a frozen tower, or tokens ``(S, W, L)`` for one that is trained.
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
    """Returns the number of an encoder's features.

    Raises:
        UserError: If the encoder does not tell; one of a user's own need not.
    """
    width = getattr(encoder, "features_dim", None)
    if not isinstance(width, int):
        raise UserError(
            f"features of {type(encoder).__name__} cannot be computed once: give it an attribute features_dim, the number of "
            "its features. [features-width]"
        )
    return width
