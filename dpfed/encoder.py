"""Loads a trained encoder for use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import Config, ViewsConfig
from dpfed.data.views.images import ImageViews
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.models.building import Tokenizer, tokenizer_for
from dpfed.models.contract import method_of
from dpfed.models.description import describe
from dpfed.models.folder import load_encoder, model_config, preprocessing_in
from dpfed.models.inputs import Pictures, square_images, texts
from dpfed.models.moments import features_of
from dpfed.models.trained import mark_trained, saw_private_records
from dpfed.paths import path_of

if TYPE_CHECKING:  # the report's pictures need matplotlib, and importing scikit-learn takes a second
    from dpfed.data.store.records import RecordStore
    from dpfed.features.pictures import PictureFeatures
    from dpfed.report.gallery import Gallery


class Encoder:
    """A trained model that turns images into vectors, and captions, too, if it has a text tower.

    Attributes:
        model: Underlying module, in evaluation mode.
        size: Side of the square images that the model reads, pixels.
        preprocessing: Preprocessing that makes images square and normalises them.
    """

    def __init__(
        self, model: nn.Module, size: int, tokenizer: Tokenizer | None, preprocessing: Preprocessing | None = None
    ) -> None:
        self.model, self.size, self._tokenizer = model, size, tokenizer
        self.preprocessing = preprocessing or Preprocessing()
        self._views = ImageViews(ViewsConfig(), self.preprocessing)

    def features(self, images: Pictures) -> Tensor:
        """Computes features for k-NN, probes and other models.

        The features are outputs of the image encoder, before its projection head. There are two exceptions. For an open_clip
        model, they are the outputs of ``encode_image``, which include CLIP's projection but are not normalised. For a model
        that was trained with ``bounding.method = "moments"``, they are the embeddings (`embed_images`).

        Args:
            images: One image: a PIL image of any size and mode, a uint8 array ``(H, W, 3)`` (grey: ``(H, W)``), or a uint8
                tensor ``(3, H, W)``. Several images: a list of these, an array ``(n, H, W, 3)``, or a tensor
                ``(n, 3, H, W)``. The features of a picture do not depend on the form in which it is given.

        Returns:
            The features, ``(n, F)`` float32; n is 1 for one image.

        Raises:
            UserError: If `images` has another form, such as floats, contains no image, or has an image that cannot be decoded.
        """
        return self._run(features_of(self.model), images)

    def embed_images(self, images: Pictures) -> Tensor:
        """Computes L2-normalised embeddings of images, ``(n, D)``, in the space of the contrastive loss; see `features`."""
        return self._run("embed_images", images)

    @torch.inference_mode()
    def embed_text(self, captions: str | Iterable[str]) -> Tensor:
        """Computes L2-normalised embeddings of captions, ``(n, D)``.

        Args:
            captions: One caption, or several.

        Raises:
            UserError: If the model has no text tower, there is no caption, or a caption is not a string or cannot be encoded.
        """
        if self._tokenizer is None:
            raise UserError("this encoder has no text tower: it was trained with model.kind = 'image'. [model-folder-no-text]")
        return method_of(self.model, "embed_text")(self._tokenizer(texts(captions)).to(self._device))

    def transformer(self, contrast: bool = False) -> PictureFeatures:
        """Returns this encoder as a scikit-learn transformer that reads lists of pictures.

        Args:
            contrast: Whether the transformer returns `embed_images` instead of `features`.
        """
        from dpfed.features.pictures import PictureFeatures

        return PictureFeatures(self, contrast)

    def gallery(self, store: RecordStore, config: Config) -> Gallery | None:
        """Builds a gallery of a public store's pictures: search by text, neighbours, and a map.

        Args:
            store: Record store.
            config: Configuration of a run; its section ``evaluation`` selects the records.

        Returns:
            The gallery; ``None`` if the store is not public.
        """
        from dpfed.evaluation.features import Embedder
        from dpfed.report.pictures import build_gallery

        how = self.preprocessing

        def read(rows: np.ndarray) -> Tensor:
            return store.images(rows, self.size, how.resize, how.interpolation)

        embedder = Embedder(self.model, read, self._views.plain, self._tokenizer, self._device)
        return build_gallery(embedder, store, read, config)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.inference_mode()
    def _run(self, method: str, images: Pictures) -> Tensor:
        pixels = square_images(images, self.size, self.preprocessing)
        return method_of(self.model, method)(self._views.plain(pixels.to(self._device)))


def load(folder: str | Path) -> Encoder:
    """Loads the encoder of a run.

    A model that was trained on private records cannot be passed to another run, because the card of that run would not count
    the epsilon of the earlier run. To train the model further, set `model.start` in a configuration to the model's folder: the
    card then names both runs.

    Args:
        folder: Run directory, or its ``model/`` folder.

    Raises:
        UserError: If the folder contains no model (an unfinished run has none yet); if the model is damaged, or in the format
            of another version of dpfed; if a package that builds the model is missing; or if a part of the model was passed to
            a `dpfed.Trainer` in Python: `Run.encoder` returns such a model.
    """
    given = folder = path_of(folder, "the folder of a run or of its model")
    if (folder / "config.toml").is_file():
        folder = RunDirectory.open(folder).model
    model, config, description = load_encoder(folder), model_config(folder), describe(folder)
    if saw_private_records(description):
        mark_trained(model, given)
    return Encoder(model, description["image_size"], tokenizer_for(config), preprocessing_in(folder))
