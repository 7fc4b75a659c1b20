"""Computes the features of records by frozen towers, each record's from that record alone."""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.data.record_set import RecordSet
from dpfed.data.views.batches import ReadAhead
from dpfed.data.views.record_views import RecordViews
from dpfed.features.cache import Features, Shard
from dpfed.features.passes import Passes
from dpfed.features.towers import frozen_towers
from dpfed.models.contract import method_of
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress, Silent

_VERSION = 1
# Views are drawn by the record's key and a constant that anyone may know: no promise rests on them.
_VIEWS = Randomness.from_seed(0)


@dataclass(frozen=True)
class FeatureCache:
    """Features of records, computed once and kept: what is in the folder already is not computed again.

    Attributes:
        folder: inside which they are kept, in a folder named by what they depend on; ``None``: a temporary one, which goes with
            the features.
        progress: sees how far it is.
    """

    folder: Path | None = None
    progress: Progress = field(default_factory=Silent)

    def features(self, model: nn.Module, views: RecordViews, store: RecordSet, rows: np.ndarray, count: int = 0) -> Features:
        """The features of some records.

        Args:
            model: whose towers are frozen.
            views: how records become what the model reads.
            store: the records.
            rows: ``(n,)`` int64 rows of the store.
            count: V, random views of each image, by the record's own key: the same in every run; 0: the plain image alone.

        Raises:
            UserError: if a tower is trained, or its features of noise are not finite. Those of a record that are not become
                zeros.
        """
        extraction = _Extraction(model, views, store, count)
        temporary = None if self.folder is not None else tempfile.TemporaryDirectory(prefix="dpfed-features-")
        features = Features(Path(self.folder or temporary.name) / extraction.key(rows), rows, temporary)  # type: ignore[union-attr]
        advance = self.progress.stage("features of frozen towers", len(rows))
        was_training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                features.complete(extraction, advance)
        finally:
            model.train(was_training)
        return features


def features_key(model: nn.Module, views: RecordViews, store: RecordSet, rows: np.ndarray, count: int = 0) -> str:
    """Names everything that the features of some records depend on; see `FeatureCache.features`."""
    return _Extraction(model, views, store, count).key(rows)


class _Extraction:
    """Rows of a store -> a shard of features."""

    def __init__(self, model: nn.Module, views: RecordViews, store: RecordSet, count: int) -> None:
        self._model, self._views, self._store, self._count = model, views, store, count
        self._device = next(model.parameters()).device
        self._towers = frozen_towers(model)
        self._read = ReadAhead(functools.partial(views.read, store))
        self._passes = Passes(self._device, views.tokenizer)

    def key(self, rows: np.ndarray) -> str:
        """Names everything that the features depend on."""
        views, store, digest = self._views, self._store, hashlib.blake2b(digest_size=16)
        shape = list(views.read(store, rows[:1]).shape[1:]) if len(rows) else []
        said = [_VERSION, store.contents, asdict(views.preprocessing), shape, self._count, self._towers.text_width]
        said += [views.images.config.model_dump(mode="json")] if self._count else []
        digest.update(json.dumps(said, sort_keys=True).encode())
        digest.update(np.ascontiguousarray(store.keys[rows]).tobytes())
        for tower in (self._towers.image, self._towers.text):
            for name, tensor in tower.state_dict().items() if tower is not None else ():
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def __call__(self, rows: np.ndarray, progress: Callable[[int], None]) -> Shard:
        """The features of a shard's records.

        Args:
            rows: ``(b,)`` of the store.
            progress: learns how many are done.
        """
        together = self._passes.together
        batches = [rows[first : first + together] for first in range(0, len(rows), together)]
        self._read.prefetch(batches)
        parts = []
        for own in batches:
            parts.append(self._of_images(own))
            progress(sum(map(len, parts)))
        image = torch.cat(parts)
        if self._towers.text is None or self._views.tokenizer is None:
            return Shard(image)
        captions = self._store.captions(rows)
        counts = torch.tensor([len(own) for own in captions])
        each = [text for own in captions for text in own]
        number = {text: index for index, text in enumerate(dict.fromkeys(each))}  # equal captions are embedded once
        embed = method_of(self._model, "text_features")
        of_each = self._passes.of_texts(embed, self._towers.text, self._towers.text_width, list(number))
        text = of_each[[number[text] for text in each]]
        return Shard(image, text, torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]))

    def _of_images(self, rows: np.ndarray) -> Tensor:
        """``(b, max(V, 1), F)`` float32 on the CPU."""
        of_images, device = self._views.images, self._device
        images, embed = self._read(rows).to(device), method_of(self._model, "features")
        if self._count:
            shape = (len(rows), self._count, of_images.columns)
            drawn = _VIEWS.per_record("views", 0, self._store.keys[rows], shape[1] * shape[2]).astype(np.float32)
            views = of_images(images, torch.from_numpy(drawn).view(shape).to(device))
        else:
            views = of_images.plain(images)[:, None]
        return torch.stack([self._passes(embed, views[:, v]) for v in range(views.shape[1])], 1)
