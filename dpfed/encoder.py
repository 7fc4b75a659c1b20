"""A trained encoder, loaded back for use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from dpfed.config import ViewsConfig
from dpfed.data.pixels import decode, square
from dpfed.data.preprocessing import Preprocessing
from dpfed.data.views import ImageViews
from dpfed.errors import UserError
from dpfed.models.building import Tokenizer, tokenizer_for
from dpfed.models.contract import method_of
from dpfed.models.folder import describe, load_encoder, model_config, preprocessing_in
from dpfed.run import RunDirectory


class Encoder:
    """Turns images, and captions where the model has a text tower, into vectors.

    Attributes:
        model: the underlying module, in evaluation mode.
        size: side of the square images that it sees, pixels.
        preprocessing: how images become square and are normalised.
    """

    def __init__(
        self, model: nn.Module, size: int, tokenizer: Tokenizer | None, preprocessing: Preprocessing | None = None
    ) -> None:
        self.model, self.size, self._tokenizer = model, size, tokenizer
        self.preprocessing = preprocessing or Preprocessing()
        self._views = ImageViews(ViewsConfig(), self.preprocessing)

    def features(self, images: Tensor | list[Image.Image]) -> Tensor:
        """Frozen backbone features, for k-NN, probes and other models.

        Args:
            images: uint8 ``(n, 3, H, W)``, or PIL images of any size.

        Returns:
            ``(n, F)`` float32.
        """
        return self._run("features", images)

    def embed_images(self, images: Tensor | list[Image.Image]) -> Tensor:
        """``(n, D)`` L2-normalised embeddings in the space of the contrast."""
        return self._run("embed_images", images)

    @torch.inference_mode()
    def embed_text(self, captions: list[str]) -> Tensor:
        """``(n, D)`` L2-normalised embeddings of captions.

        Raises:
            UserError: if the model has no text tower.
        """
        if self._tokenizer is None:
            raise UserError("this encoder has no text tower: it was trained with model.kind = 'image'.")
        return method_of(self.model, "embed_text")(self._tokenizer(captions).to(self._device))

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.inference_mode()
    def _run(self, method: str, images: Tensor | list[Image.Image]) -> Tensor:
        if not isinstance(images, Tensor):
            how = (self.size, self.preprocessing.resize, self.preprocessing.interpolation)
            images = torch.from_numpy(np.stack([square(decode(image), *how) for image in images]))
        if images.shape[-2:] != (self.size, self.size):
            resized = functional.interpolate(
                images.float(), (self.size, self.size), mode=self.preprocessing.interpolation, antialias=True
            )
            images = resized.round().clamp(0, 255).to(torch.uint8)
        return method_of(self.model, method)(self._views.plain(images.to(self._device)))


def load(folder: str | Path) -> Encoder:
    """Loads the encoder of a run.

    Args:
        folder: a run directory, or its ``model/``.

    Raises:
        UserError: if there is no model, or it is damaged.
    """
    folder = Path(folder)
    if (folder / "config.toml").is_file():
        folder = RunDirectory.open(folder).model
    model, config = load_encoder(folder), model_config(folder)
    return Encoder(model, describe(folder)["image_size"], tokenizer_for(config), preprocessing_in(folder))
