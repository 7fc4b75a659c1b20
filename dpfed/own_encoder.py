"""A trained encoder of the user's own. It prepares images in the way in which the run's evaluation prepared records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import Config
from dpfed.data.items.item import BrokenItem, Parts, described, image_of
from dpfed.data.items.loading import generators_kept, tensor_of
from dpfed.data.items.records import Records
from dpfed.data.items.views import Views, plain_like, simclr_transform
from dpfed.errors import UserError
from dpfed.models.contract import method_of
from dpfed.models.folder import load_weights_into
from dpfed.models.inputs import texts

_TOGETHER = 64  # images in a forward pass


class OwnEncoder:
    """A trained model that turns images into vectors, and captions, too, if it has a text tower.

    Attributes:
        module: The model's image encoder, trained, in evaluation mode: images ``(n, C, H, W)`` -> features ``(n, F)``. If the
            model has neither ``encoder`` nor ``image_encoder``, this is the whole model.
        model: Whole model, with its heads.
        plain: Function that turns an image into the tensor ``(C, H, W)`` that the run's evaluation would make of the image.
    """

    def __init__(
        self, model: nn.Module, plain: Callable[[Any], Tensor], tokenizer: Any = None, parts: Parts | None = None
    ) -> None:
        self._parts = parts or Parts()
        self.model, self.plain, self._tokenizer = model.eval(), plain, tokenizer
        self.module: nn.Module = getattr(model, "encoder", None) or getattr(model, "image_encoder", None) or model

    @classmethod
    def of(cls, model: nn.Module, run: RunDirectory, records: Records, views: Views | None, config: Config) -> OwnEncoder:
        """Loads the weights of a finished run into its model, and returns the encoder.

        Args:
            model: Model of the run; the weights that the run published are loaded into it.
            run: Directory of the run.
            records: Records of the run.
            views: Views of the run; ``None``: the default views.
            config: Configuration of the run.

        Raises:
            UserError: If the folder of the run's model is missing or damaged, or the model has another architecture.
        """
        channels, height, width = config.views.shape or (3, 0, 0)
        transform = simclr_transform(height) if views is None else views.transform
        plain = plain_like(transform, (channels, height, width)) if views is None or views.plain is None else views.plain
        load_weights_into(run.model, model, (channels, height, width))
        return cls(model, plain, getattr(model, "tokenizer", None), records.parts)

    def features(self, images: Any) -> Tensor:
        """Computes features of images, for k-NN, probes and other models.

        Args:
            images: An image, or an item in the form in which the run's data set returns items; a list of these; a tensor
                ``(n, C, H, W)``; or a data set, whose items are read as in training. Outside a data set, an array or
                tensor of up to three dimensions is an image, unless the run has `Records(image=...)` with a function, which
                gets each item.

        Returns:
            The features, ``(n, F)`` float32 on the CPU; n is 1 for one image.

        Raises:
            UserError: If `images` is empty, or an image cannot be used.
        """
        return self._run("features", images)

    def embed_images(self, images: Any) -> Tensor:
        """Computes L2-normalised embeddings of images, ``(n, D)``, in the space of the contrastive loss; see `features`.

        Raises:
            UserError: For the reasons given at `features`; also if the model has no method ``embed_images``.
        """
        return self._run("embed_images", images)

    @torch.inference_mode()
    def embed_text(self, captions: str | Iterable[str]) -> Tensor:
        """Computes L2-normalised embeddings of captions, ``(n, D)`` float32 on the CPU.

        Args:
            captions: One caption, or several.

        Raises:
            UserError: If the model has no text tower, there is no caption, a caption is not a string, or the tokenizer fails.
        """
        if self._tokenizer is None:
            raise UserError(
                "this encoder has no text tower: only a model such as dpfed.TwoTower embeds captions. [encoder-no-text]"
            )
        return method_of(self.model, "embed_text")(self._tokenizer(texts(captions)).to(self._device)).float().cpu()

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.inference_mode()
    def _run(self, method: str, images: Any) -> Tensor:
        is_data_set = _is_data_set(images)
        image_of_item = self._parts.image_of if is_data_set else self._image_or_part
        many = [images[place] for place in range(len(images))] if is_data_set else _listed(images)
        embed, outputs = method_of(self.model, method), []
        for first in range(0, len(many), _TOGETHER):
            with generators_kept():
                some = enumerate(many[first : first + _TOGETHER], first)
                ready = [self._ready(item, number, image_of_item) for number, item in some]
            other = next((image for image in ready if image.shape != ready[0].shape), None)
            if other is not None:
                raise UserError(
                    f"Views.plain makes images of different shapes, {tuple(ready[0].shape)} and {tuple(other.shape)}: pass one "
                    "image at a time. [encoder-shapes]"
                )
            outputs.append(embed(torch.stack(ready).to(self._device)).float().cpu())
        if not outputs:
            raise UserError("there is no image: give at least one. [encoder-no-image]")
        return torch.cat(outputs)

    def __repr__(self) -> str:
        return f"OwnEncoder({type(self.module).__name__})"

    def _ready(self, item: Any, number: int, image_of_item: Callable[[Any], Image.Image | Tensor]) -> Tensor:
        try:
            return tensor_of(self.plain(image_of_item(item)), "Views.plain")
        except UserError:
            raise
        except Exception as error:
            why = str(error) if isinstance(error, BrokenItem) else f"{type(error).__name__}: {error}"
            raise UserError(f"image {number} ({described(item)}) cannot be used: {why}. [encoder-image]") from error

    def _image_or_part(self, item: Any) -> Image.Image | Tensor:
        """Returns an item that is an image by itself, or else the image in the item.

        If the run has `Records(image=...)` with a function, that function gives the image of every item.
        """
        is_image = isinstance(item, Image.Image | np.ndarray | Tensor) and getattr(item, "ndim", 2) <= 3
        return image_of(item) if is_image and not callable(self._parts.image) else self._parts.image_of(item)


def _is_data_set(given: Any) -> bool:
    if isinstance(given, list | Tensor | np.ndarray | Image.Image | Mapping | tuple | str):
        return False
    return hasattr(given, "__len__") and hasattr(given, "__getitem__")


def _listed(images: Any) -> list[Any]:
    """Lists the images of a list or of a tensor ``(n, C, H, W)``; any other object is one image."""
    return list(images) if isinstance(images, list) or (isinstance(images, Tensor) and images.dim() == 4) else [images]
