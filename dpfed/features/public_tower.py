"""Features of pictures or captions from the towers of a public model, without a run."""

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
    """The frozen towers of a public model, which compute features of pictures and of captions.

    No bit of the features of a picture or text depends on other pictures or texts of the same call.

    Args:
        model: Model with a method `features` if it has an image tower, and `text_features` if it has a text tower. It is moved
            to the GPU, if there is one.
        text: Text tower of the model; ``None``: the model has no text tower.
        text_width: F_t, number of features of a text.
        tokenizer: Tokenizer of the text tower; ``None``: the model has no text tower.
        size: Side of the square images that the image tower reads, pixels; 0: the model has no image tower.
        preprocessing: Resizing and normalisation of the images; ``None``: the defaults of `Preprocessing`.

    Attributes:
        size: Side of the square images, as given.
        preprocessing: Preprocessing of the images.
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
        """Whether there is an image tower."""
        return self.size > 0

    @property
    def reads_text(self) -> bool:
        """Whether there is a text tower."""
        return self._text is not None

    @torch.inference_mode()
    def images(self, pixels: Tensor) -> Tensor:
        """Returns the features of square images, ``(n, F)`` float32 on the CPU.

        Args:
            pixels: Images, ``(n, 3, size, size)`` uint8.

        Raises:
            UserError: If the model has no image tower, or a trial of the tower on noise gives features that are not finite.
        """
        if not self.reads_images:
            raise UserError("this model has no image tower, so it has no features of images. [tower-no-images]")
        return self._passes(method_of(self._model, "features"), self._views.plain(pixels.to(self._device)))

    @torch.inference_mode()
    def captions(self, each: Sequence[Sequence[str]]) -> Tensor:
        """Returns the mean features of each record's captions, ``(n, F_t)`` float32 on the CPU.

        Args:
            each: Captions of each of n records, at least one caption for each record.

        Raises:
            UserError: If the model has no text tower, or a trial of the tower on noise gives features that are not finite.
        """
        if self._text is None:
            raise UserError("this model has no text tower, so it has no features of captions. [tower-no-text]")
        counts = torch.tensor([len(captions) for captions in each])
        texts = [text for captions in each for text in captions]
        number = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        of_each = self._passes.of_texts(method_of(self._model, "text_features"), self._text, self._width, list(number))
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        means = Shard(torch.empty(0), of_each[[number[text] for text in texts]], offsets).text_means
        assert means is not None
        return means


def public_tower(config: ModelConfig) -> PublicTower:
    """Loads the towers of an open_clip model, or an image encoder of timm or torchvision, with pretrained weights.

    Args:
        config: Section ``model`` of a configuration, which names the model and its weights.

    Raises:
        UserError: If the model is unknown, or its weights are not available.
    """
    frozen = AdaptationConfig(image="frozen", text="frozen")
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, ObjectiveConfig(), frozen).requires_grad_(False)
    towers = frozen_towers(model)
    size, preprocessing = default_size(config), preprocessing_of(config)
    return PublicTower(model, towers.text, towers.text_width, tokenizer_for(config), size, preprocessing)


def public_text_tower(name: str) -> PublicTower:
    """Loads a pretrained text tower.

    Args:
        name: Name ``sentence-transformers/NAME``, or path of a folder in the format of Hugging Face.

    Raises:
        UserError: If the tower is not available, or cannot be built.
    """
    spec = text_blueprint(name)
    tower = build_text_tower(spec, out=1).backbone
    return PublicTower(_TextOnly(tower), tower, spec.width, TextTokenizer(spec))


class _TextOnly(nn.Module):
    """A model that consists of a text tower only. Its method ``text_features`` is the tower.

    Args:
        tower: Text tower.
    """

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.text_features = tower
