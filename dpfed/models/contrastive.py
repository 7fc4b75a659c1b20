"""Models that embed the views of a group's records, on the unit sphere unless the loss needs the embeddings' scale.

Shapes: S records in a group, V views of an image, V_t texts of a record, L tokens of a text, D dimensions of an embedding,
F features of the backbone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

import torch
import torch.nn.functional as F
from torch import nn

from dpfed.errors import UserError

MIN_TEMPERATURE = 0.01


class _Contrastive(nn.Module):
    """Base class of the models. It holds temperature and bias.

    Fixed values are buffers. Learnt values are parameters; for the temperature, the parameter is minus the temperature's
    logarithm.
    """

    fixed_temperature: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, temperature: float, learn_temperature: bool, bias: float | None, unit_length: bool) -> None:
        super().__init__()
        self.unit_length = unit_length
        _refuse_temperature(temperature, learn_temperature)
        if learn_temperature:
            self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        else:
            self.register_buffer("fixed_temperature", torch.tensor(float(temperature)))
        self.learn_temperature = learn_temperature
        self.set_bias(bias)

    @property
    def temperature(self) -> torch.Tensor:
        """Temperature, which divides the cosine similarities: a scalar tensor, at least 0.01 if it is learnt."""
        if not self.learn_temperature:
            return self.fixed_temperature
        return torch.exp(-self.log_scale).clamp(min=MIN_TEMPERATURE)

    def set_temperature(self, temperature: float) -> None:
        """Sets the temperature, or the initial value of a learnt one.

        Raises:
            UserError: If the temperature is not positive and finite, or a learnt temperature starts below 0.01.
        """
        _refuse_temperature(temperature, self.learn_temperature)
        with torch.no_grad():
            if self.learn_temperature:
                self.log_scale.fill_(-math.log(temperature))
            else:
                self.fixed_temperature.fill_(temperature)

    def set_bias(self, bias: float | None) -> None:
        """Sets the bias that is added to every logit of a pairwise loss, or the initial value of a learnt one.

        Args:
            bias: Bias; ``None``: the model has none.
        """
        if hasattr(self, "bias"):
            del self.bias
        if bias is None:
            self.bias = None
        elif self.learn_temperature:
            self.bias = nn.Parameter(torch.tensor(float(bias)))
        else:
            self.register_buffer("bias", torch.tensor(float(bias)))


def _refuse_temperature(value: object, learnt: bool) -> None:
    """Refuses a value that is not a temperature, and a learnt temperature below the minimum, where its gradient would be 0."""
    is_scalar = isinstance(value, Real) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    if not is_scalar or isinstance(value, bool) or not 0 < value <= torch.finfo(torch.float32).max:  # type: ignore[operator]
        raise UserError(f"expected a finite temperature above 0, got {value!r}. [model-temperature]")
    if learnt and value < MIN_TEMPERATURE:  # type: ignore[operator]
        raise UserError(f"a learnt temperature must start at {MIN_TEMPERATURE} or above, got {value}. [model-learnt-low]")


class SimCLRModel(_Contrastive):
    """An image encoder with a projection head, through which the loss sees the features (Chen et al. 2020).

    Args:
        encoder: Encoder from images ``(n, 3, H, W)`` to features ``(n, F)``.
        head: Projection head from features to ``(n, D)``.
        temperature: Temperature, which divides the cosine similarities; the initial value if it is learnt.
        learn_temperature: Whether temperature and bias are parameters.
        bias: Bias, added to every logit of a pairwise loss; ``None`` for losses without a bias.
        unit_length: Whether `forward` returns embeddings of unit length; `embed_images` always does.

    Raises:
        UserError: If the temperature is not positive and finite, or a learnt temperature starts below 0.01.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        temperature: float = 0.1,
        learn_temperature: bool = False,
        bias: float | None = None,
        unit_length: bool = True,
    ) -> None:
        super().__init__(temperature, learn_temperature, bias, unit_length)
        self.encoder = encoder
        self.head = head
        self.image_head: nn.Module = nn.Identity()  # the last layer, a head of moments if there is one (`dpfed.models.moments`)

    def forward(self, views: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Maps views ``{"image": (S, V, 3, H, W)}`` to embeddings ``{"image": (S, V, D)}``."""
        embed = self.embed_images if self.unit_length else self.project_images
        return {"image": per_view(embed, views["image"])}

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """Computes backbone features ``(n, F)`` of normalised images ``(n, 3, H, W)``."""
        return self.encoder(images)

    def project_images(self, images: torch.Tensor) -> torch.Tensor:
        """Computes projections ``(n, D)``, not scaled to unit length, of normalised images ``(n, 3, H, W)``."""
        return self.image_head(self.head(self.encoder(images)))

    def embed_images(self, images: torch.Tensor) -> torch.Tensor:
        """Computes embeddings ``(n, D)`` of unit length of normalised images ``(n, 3, H, W)``."""
        return F.normalize(self.project_images(images), dim=1)


class TwoTowerModel(_Contrastive):
    """An image encoder and a text encoder that meet in one space (Radford et al. 2021).

    Args:
        image_encoder: Encoder from images ``(n, 3, H, W)`` to features ``(n, F)``.
        text_encoder: Encoder from tokens ``(n, L)`` to ``(n, D)``.
        projection: Projection of image features to ``(n, D)``.
        temperature: Temperature, which divides the cosine similarities; the initial value if it is learnt.
        learn_temperature: Whether temperature and bias are parameters.
        bias: Bias, added to every logit of a pairwise loss; ``None`` for losses without a bias.
        unit_length: Whether `forward` returns embeddings of unit length; `embed_images` and `embed_text` always do.

    Raises:
        UserError: If the temperature is not positive and finite, or a learnt temperature starts below 0.01.
    """

    def __init__(
        self,
        image_encoder: nn.Module,
        text_encoder: nn.Module,
        projection: nn.Module,
        temperature: float = 0.1,
        learn_temperature: bool = False,
        bias: float | None = None,
        unit_length: bool = True,
    ) -> None:
        super().__init__(temperature, learn_temperature, bias, unit_length)
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.projection = projection
        self.image_head: nn.Module = nn.Identity()  # the last layer, a head of moments if there is one (`dpfed.models.moments`)
        self.text_head: nn.Module = nn.Identity()

    def forward(self, views: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Maps views ``{"image": (S, V, 3, H, W), "text": (S, V_t, L)}`` to ``{"image": (S, V, D), "text": (S, V_t, D)}``."""
        unit, raw = (self.embed_images, self.embed_text), (self.project_images, self.project_text)
        image, text = unit if self.unit_length else raw
        return {"image": per_view(image, views["image"]), "text": per_view(text, views["text"])}

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """Computes backbone features ``(n, F)`` of normalised images ``(n, 3, H, W)``, before the projection."""
        return self.image_encoder(images)

    def text_features(self, tokens: torch.Tensor) -> torch.Tensor:
        """Computes text features of tokens ``(n, L)``: ``(n, F)`` before the head, or ``(n, D)`` if the encoder has no head."""
        return getattr(self.text_encoder, "backbone", self.text_encoder)(tokens)

    def project_images(self, images: torch.Tensor) -> torch.Tensor:
        """Computes projections ``(n, D)``, not scaled to unit length, of normalised images ``(n, 3, H, W)``."""
        return self.image_head(self.projection(self.image_encoder(images)))

    def project_text(self, tokens: torch.Tensor) -> torch.Tensor:
        """Computes projections ``(n, D)``, not scaled to unit length, of tokens ``(n, L)``."""
        return self.text_head(self.text_encoder(tokens))

    def embed_images(self, images: torch.Tensor) -> torch.Tensor:
        """Computes embeddings ``(n, D)`` of unit length of normalised images ``(n, 3, H, W)``."""
        return F.normalize(self.project_images(images), dim=1)

    def embed_text(self, tokens: torch.Tensor) -> torch.Tensor:
        """Computes embeddings ``(n, D)`` of unit length of tokens ``(n, L)``."""
        return F.normalize(self.project_text(tokens), dim=1)


def per_view(embed: Callable[[torch.Tensor], torch.Tensor], views: torch.Tensor) -> torch.Tensor:
    """Embeds views ``(S, V, ...)`` in one batch, and returns their embeddings ``(S, V, D)``."""
    return embed(views.flatten(0, 1)).unflatten(0, views.shape[:2])
