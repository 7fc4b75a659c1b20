"""A public tower without a run: features of pictures, or of captions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpfed.data.options import ViewsConfig
from dpfed.data.views.images import ImageViews
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.data.views.record_views import Tokenizer
from dpfed.errors import UserError
from dpfed.features.cache import Shard
from dpfed.features.passes import Passes
from dpfed.features.towers import frozen_towers
from dpfed.models.building import build_model, tokenizer_for
from dpfed.models.contract import method_of
from dpfed.models.images import default_size, preprocessing_of
from dpfed.models.options import AdaptationConfig, ModelConfig
from dpfed.models.text_blueprints import text_blueprint
from dpfed.models.text_tower import TextTokenizer, build_text_tower
from dpfed.objectives import ObjectiveConfig


class PublicTower:
    """The frozen towers of a public model. Features of one picture or text do not depend on those beside it, bit by bit.

    Args:
        model: Model with `features`, if it has an image tower, and `text_features`, if it has a text tower.
        text: Text tower of the model; ``None``: it has none.
        text_width: F_t.
        tokenizer: Tokenizer of the text tower.
        size: Side of the square images that it sees, pixels; 0: it has no image tower.
        preprocessing: Resizing and normalisation of the images.
    """

    def __init__(
        self,
        model: nn.Module,
        text: nn.Module | None = None,
        text_width: int = 0,
        tokenizer: Tokenizer | None = None,
        size: int = 0,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model, self._text, self._width, self.size = model.to(device).eval(), text, text_width, size
        self.preprocessing = preprocessing or Preprocessing()
        self._views, self._device = ImageViews(ViewsConfig(), self.preprocessing), torch.device(device)
        self._passes = Passes(self._device, tokenizer)

    @property
    def reads_images(self) -> bool:
        """Returns whether there is an image tower."""
        return self.size > 0

    @property
    def reads_text(self) -> bool:
        """Returns whether there is a text tower."""
        return self._text is not None

    @torch.inference_mode()
    def images(self, pixels: Tensor) -> Tensor:
        """Features ``(n, F)`` float32 on the CPU of square images, uint8 ``(n, 3, size, size)``."""
        return self._passes(method_of(self._model, "features"), self._views.plain(pixels.to(self._device)))

    @torch.inference_mode()
    def captions(self, each: Sequence[Sequence[str]]) -> Tensor:
        """Features ``(n, F_t)`` float32 on the CPU of records' captions: the mean of a record's own.

        Args:
            each: N lists of captions, at least one each.

        Raises:
            UserError: For a model without a text tower.
        """
        if self._text is None:
            raise UserError("this model has no text tower, so it has no features of captions. [tower-no-text]")
        counts = torch.tensor([len(own) for own in each])
        texts = [text for own in each for text in own]
        number = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        of_each = self._passes.of_texts(method_of(self._model, "text_features"), self._text, self._width, list(number))
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        means = Shard(torch.empty(0), of_each[[number[text] for text in texts]], offsets).text_means
        assert means is not None
        return means


def public_tower(config: ModelConfig) -> PublicTower:
    """The towers of an open_clip model, or an image encoder of timm or torchvision, with the named weights.

    Args:
        config: Names the model and its weights.

    Raises:
        UserError: For weights that are not available.
    """
    frozen = AdaptationConfig(image="frozen", text="frozen")
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, ObjectiveConfig(), frozen).requires_grad_(False)
    towers = frozen_towers(model)
    size, preprocessing = default_size(config), preprocessing_of(config)
    return PublicTower(model, towers.text, towers.text_width, tokenizer_for(config), size, preprocessing)


def public_text_tower(name: str) -> PublicTower:
    """A pretrained text tower.

    Args:
        name: ``sentence-transformers/NAME``, or a folder in the Hugging Face format.

    Raises:
        UserError: If it is not available.
    """
    spec = text_blueprint(name)
    tower = build_text_tower(spec, out=1).backbone
    return PublicTower(_TextOnly(tower), tower, spec.width, TextTokenizer(spec))


class _TextOnly(nn.Module):
    """A model that is a text tower."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.text_features = tower
