"""Computes features of records by frozen towers, which are not trained. A record's features depend only on that record."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib.metadata
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dpfed import __version__
from dpfed.data.record_set import RecordSet
from dpfed.data.store.records import RecordStore
from dpfed.data.views.batches import ReadAhead
from dpfed.data.views.record_views import RecordViews
from dpfed.errors import UserError
from dpfed.evaluation.features import frozen
from dpfed.features.cache import SHARD, Features, Shard, shard_name
from dpfed.features.kept import claimed_features, place_of
from dpfed.features.passes import Passes
from dpfed.features.towers import Towers, frozen_towers
from dpfed.models.contract import method_of
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress, Silent

_VERSION = 2
# Views are drawn from the record's key and a constant that anyone may know: the guarantee does not depend on them.
_VIEWS = Randomness.from_seed(0)
_TEXTS = ["A photo of 2 red circles (left), naïve; and 1 BLUE square.", "a"]  # their tokens and features tell text towers apart
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class FeatureCache:
    """Computes features of records, and keeps them in files. If the files exist already, it reads them instead.

    Attributes:
        folder: Folder that gets a subfolder for the features, whose name is a hash of all that the features depend on.
            ``None``: a temporary folder, which is deleted with the features.
        progress: Display of the stages.
        stay: Whether the features of a record store are kept beside the store for later runs (`dpfed.features.kept`). Features
            that cannot be kept there, and features of records that are not in a store, go into `folder`.
    """

    folder: Path | None = None
    progress: Progress = field(default_factory=Silent)
    stay: bool = False

    def features(self, model: nn.Module, views: RecordViews, store: RecordSet, rows: np.ndarray, count: int = 0) -> Features:
        """Returns the features of the given records, and computes them first if they are not in files.

        If a feature of an image view or of a caption is not finite, all features of this view or caption become zeros.

        Args:
            model: Model with frozen towers.
            views: Views that turn records into the model's input.
            store: Records.
            rows: Rows of the store, ``(n,)`` int64.
            count: V, number of random views of each image; 0: only the plain image. What is drawn for a view depends on the
                record's key alone, so the views are the same in every run.

        Raises:
            UserError: If the image tower is trained, features of this kind of model cannot be computed in advance, a trial on
                noise gives features that are not finite, or an image cannot be read.
            OSError: If the features cannot be written.
        """
        extraction = _Extraction(model, views, store, count)
        was_training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                key = extraction.key(rows)
                kept = self._staying(extraction, key, rows, store) if self.stay and isinstance(store, RecordStore) else None
                return kept or self._passing(extraction, key, rows)
        finally:
            model.train(was_training)

    def has(self, model: nn.Module, views: RecordViews, store: RecordSet, rows: np.ndarray, count: int = 0) -> bool:
        """Returns whether earlier runs kept all features of the given records beside the store. The files are not read.

        The result is ``False`` if `stay` is not set, the records are not in a record store, or `rows` is empty. See `features`
        for the arguments and errors.
        """
        if not self.stay or not isinstance(store, RecordStore) or not place_of(store.path).is_dir() or not len(rows):
            return False
        with frozen(model):
            folder = place_of(store.path) / _Extraction(model, views, store, count).key(rows)
        return all((folder / shard_name(number)).is_file() for number in range(-(-len(rows) // SHARD)))

    def _staying(self, extraction: _Extraction, key: str, rows: np.ndarray, store: RecordStore) -> Features | None:
        """Returns features that are kept beside the store, and computes those that are missing.

        ``None``: the features cannot be kept beside the store. A note then says why.
        """
        with contextlib.ExitStack() as held:
            try:
                folder = held.enter_context(claimed_features(place_of(store.path), key, self.progress.note))
            except (UserError, OSError) as error:
                self._say_why(error)
                return None
            features = Features(folder, rows, stay=True)
            try:
                features.complete(extraction, self._advance(rows))
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                shutil.rmtree(folder, ignore_errors=True)
                self._say_why(error)
                return None
            return features

    def _say_why(self, error: Exception) -> None:
        self.progress.note(f"features of frozen towers serve this run only, as they cannot be kept beside the store. {error}")

    def _passing(self, extraction: _Extraction, key: str, rows: np.ndarray) -> Features:
        """Returns features that are kept for this run only, in `folder` or in a temporary folder; missing ones are computed."""
        temporary = None if self.folder is not None else tempfile.TemporaryDirectory(prefix="dpfed-features-")
        features = Features(Path(self.folder or temporary.name) / key, rows, temporary)  # type: ignore[union-attr]
        features.complete(extraction, self._advance(rows))
        return features

    def _advance(self, rows: np.ndarray) -> Callable[[int], None]:
        return self.progress.stage("features of frozen towers", len(rows))


def features_key(model: nn.Module, views: RecordViews, store: RecordSet, rows: np.ndarray, count: int = 0) -> str:
    """Returns a hexadecimal hash of all that the features of records depend on; see `FeatureCache.features`."""
    return _Extraction(model, views, store, count).key(rows)


def towers_digest(towers: Towers) -> bytes:
    """Returns a hash of the weights of frozen towers, 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    _hash_towers(towers, digest)
    return digest.digest()


def _hash_towers(towers: Towers, digest: hashlib.blake2b) -> None:
    for tower in (towers.image, towers.text):
        for name, tensor in tower.state_dict().items() if tower is not None else ():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


class _Extraction:
    """A function that computes the features of the records of a shard; see `FeatureCache.features` for arguments and errors."""

    def __init__(self, model: nn.Module, views: RecordViews, store: RecordSet, count: int) -> None:
        self._model, self._views, self._store, self._count = model, views, store, count
        self._device = next(model.parameters()).device
        self._towers = frozen_towers(model)
        self._read = ReadAhead(functools.partial(views.read, store))
        self._passes = Passes(self._device, views.tokenizer)

    def key(self, rows: np.ndarray) -> str:
        """Returns a hash of all that the features of the given records depend on, in hexadecimal.

        The hash covers the records, the views, the towers' weights, and how the towers compute (`_signs`). It also covers the
        kind of device, and the versions of dpfed and of Pillow, which reads the images.
        """
        views, store, digest = self._views, self._store, hashlib.blake2b(digest_size=16)
        first = views.read(store, rows[:1])[:1]
        said = [_VERSION, __version__, importlib.metadata.version("pillow"), self._device.type, self._signs(first)]
        said += [store.contents, asdict(views.preprocessing), list(first.shape[1:]), self._count, self._towers.text_width]
        said += [views.images.config.model_dump(mode="json")] if self._count else []
        digest.update(json.dumps(said, sort_keys=True).encode())
        digest.update(np.ascontiguousarray(store.keys[rows]).tobytes())
        _hash_towers(self._towers, digest)
        return digest.hexdigest()

    def _signs(self, like: Tensor) -> list[object]:
        """Returns a fingerprint of how the towers compute: tokens of two texts, and sums of features of texts and of noise.

        The towers' weights alone do not tell how many attention heads there are, which activation follows a layer, or how texts
        become tokens. The sums are of the absolute features of the two texts and of two images of noise. Each sum is rounded to
        three digits.

        Args:
            like: Image whose shape and type the noise gets, ``(1, C, H, W)``. If it contains no image, ``(0, ...)``, the image
                tower is left out.
        """
        noise = torch.randint(0, 256, (2, *like.shape[1:]), generator=torch.Generator().manual_seed(0)).to(like)
        outputs = [method_of(self._model, "features")(self._views.images.plain(noise.to(self._device)))] if len(like) else []
        said: list[object] = []
        if self._towers.text is not None and self._views.tokenizer is not None:
            tokens = self._views.tokenizer(_TEXTS)
            said.append(tokens.tolist())
            outputs.append(method_of(self._model, "text_features")(tokens.to(self._device)))
        for output in outputs:
            size = output.double().abs().cpu()
            said += [
                f"{(size * weights).sum():.2e}" for weights in (torch.ones_like(size), torch.linspace(0, 1, size[0].numel()))
            ]
        return said

    def __call__(self, rows: np.ndarray, progress: Callable[[int], None]) -> Shard:
        """Computes the features of a shard's records.

        Args:
            rows: Rows of the store, ``(b,)``.
            progress: Function that is called with the number of these records whose images are done.
        """
        together = self._passes.together
        batches = [rows[first : first + together] for first in range(0, len(rows), together)]
        self._read.prefetch(batches)
        parts = []
        for batch in batches:
            parts.append(self._of_images(batch))
            progress(sum(map(len, parts)))
        image = torch.cat(parts)
        if self._towers.text is None or self._views.tokenizer is None:
            return Shard(image)
        captions = self._store.captions(rows)
        counts = torch.tensor([len(of_record) for of_record in captions])
        each = [text for of_record in captions for text in of_record]
        number = {text: index for index, text in enumerate(dict.fromkeys(each))}  # equal captions are embedded once
        embed = method_of(self._model, "text_features")
        of_each = self._passes.of_texts(embed, self._towers.text, self._towers.text_width, list(number))
        text = of_each[[number[text] for text in each]]
        return Shard(image, text, torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]))

    def _of_images(self, rows: np.ndarray) -> Tensor:
        """Returns the features of the records' image views, ``(b, max(V, 1), F)`` float32 on the CPU.

        Args:
            rows: Rows of the store, ``(b,)``.
        """
        of_images, device = self._views.images, self._device
        images, embed = self._read(rows).to(device), method_of(self._model, "features")
        if self._count:
            shape = (len(rows), self._count, of_images.columns)
            drawn = _VIEWS.per_record("views", 0, self._store.keys[rows], shape[1] * shape[2]).astype(np.float32)
            views = of_images(images, torch.from_numpy(drawn).view(shape).to(device))
        else:
            views = of_images.plain(images)[:, None]
        return torch.stack([self._passes(embed, views[:, v]) for v in range(views.shape[1])], 1)
