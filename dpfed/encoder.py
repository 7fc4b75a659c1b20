"""A trained encoder, loaded back for use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from dpfed.config import ViewsConfig
from dpfed.data.text import WordTokenizer
from dpfed.data.views import ImageViews
from dpfed.errors import UserError
from dpfed.models.building import describe, load_encoder


class Encoder:
    """Turns images, and captions where the model has a text tower, into vectors.

    Attributes:
        model: the underlying module, in evaluation mode.
        size: side of the square images that it sees, pixels.
    """

    def __init__(self, model: nn.Module, size: int, tokenizer: WordTokenizer | None) -> None:
        self.model, self.size, self._tokenizer = model, size, tokenizer
        self._views = ImageViews(ViewsConfig())

    def features(self, images: Tensor | list[Image.Image]) -> Tensor:
        """Frozen backbone features, for k-NN, probes and other models.

        Args:
            images: uint8 ``(n, 3, H, W)``, or PIL images of any size.

        Returns:
            ``(n, F)`` float32.
        """
        return self._run(self.model.features, images)

    def embed_images(self, images: Tensor | list[Image.Image]) -> Tensor:
        """``(n, D)`` L2-normalised embeddings in the space of the contrast."""
        return self._run(self.model.embed_images, images)

    @torch.inference_mode()
    def embed_text(self, captions: list[str]) -> Tensor:
        """``(n, D)`` L2-normalised embeddings of captions.

        Raises:
            UserError: if the model has no text tower.
        """
        if self._tokenizer is None:
            raise UserError("this encoder has no text tower: it was trained with model.kind = 'image'.")
        return self.model.embed_text(self._tokenizer(captions).to(self._device))

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.inference_mode()
    def _run(self, function, images: Tensor | list[Image.Image]) -> Tensor:
        if not isinstance(images, Tensor):
            arrays = [
                np.asarray(image.convert("RGB").resize((self.size, self.size), Image.Resampling.BICUBIC)) for image in images
            ]
            images = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
        if images.shape[-2:] != (self.size, self.size):
            resized = functional.interpolate(images.float(), (self.size, self.size), mode="bicubic", antialias=True)
            images = resized.round().clamp(0, 255).to(torch.uint8)
        return function(self._views.plain(images.to(self._device)))


def load(folder: str | Path) -> Encoder:
    """Loads the encoder of a run.

    Args:
        folder: a run directory, or its ``model/``.

    Raises:
        UserError: if there is no model, or it is damaged.
    """
    folder = Path(folder)
    folder = folder / "model" if (folder / "config.toml").is_file() else folder
    model, description = load_encoder(folder), describe(folder)
    text = description["model"] if description["model"]["kind"] == "image-text" else None
    tokenizer = WordTokenizer(text["vocabulary"], text["context"]) if text else None
    return Encoder(model, description["image_size"], tokenizer)
