"""Embedders of models with the same frozen towers. A run evaluates several such models, but runs their towers only once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.data.record_set import RecordSet
from dpfed.data.views.record_views import RecordViews
from dpfed.errors import UserError
from dpfed.evaluation.features import Embedder, frozen
from dpfed.features.cache import SHARD, Features
from dpfed.features.extraction import FeatureCache, towers_digest
from dpfed.features.passes import Passes
from dpfed.features.towers import from_features, frozen_towers
from dpfed.models.contract import method_of


@dataclass
class _Known:
    """The features of one set of frozen towers, as far as they are known.

    Attributes:
        of_rows: Features of records. A key is the bytes of the array of these records' rows.
        of_texts: Features of each text, ``(F_t,)`` float32 on the CPU. A key is the text.
    """

    of_rows: dict[bytes, Features] = field(default_factory=dict)
    of_texts: dict[str, Tensor] = field(default_factory=dict)


class TowersOnce:
    """Makes embedders of models. Models with the same frozen towers share the towers' features.

    Features are looked up by a hash of the towers' weights, so no model gets the features of other towers.

    Args:
        store: Records.
        views: Views that turn records into the models' input.
        cache: Cache that computes the features, and may keep them for later runs.
    """

    def __init__(self, store: RecordSet, views: RecordViews, cache: FeatureCache) -> None:
        self._store, self._views, self._cache = store, views, cache
        self._known: dict[bytes, _Known] = {}

    def embedder(self, model: nn.Module) -> Embedder:
        """Makes a model's embedder. It reads features of frozen towers or, if `frozen_towers` refuses the model, images."""
        read, device = functools.partial(self._views.read, self._store), next(model.parameters()).device
        whole = Embedder(model, read, self._views.images.plain, self._views.tokenizer, device)
        try:
            return _OfFrozen(whole, from_features(model), self)
        except UserError:  # the image tower is trained, or `frozen_towers` does not know this kind of model
            return whole

    def known(self, model: nn.Module) -> _Known:
        """Returns the features of a model's frozen towers that were computed so far. Callers may add further ones."""
        return self._known.setdefault(towers_digest(frozen_towers(model)), _Known())

    def features(self, model: nn.Module, known: _Known, rows: np.ndarray) -> Features:
        """Returns the features of records. They are added to `known`, where the next call with the same rows finds them."""
        name = rows.tobytes()
        if name not in known.of_rows:
            known.of_rows[name] = self._cache.features(model, self._views, self._store, rows)
        return known.of_rows[name]

    def texts(self, model: nn.Module, known: _Known, texts: list[str]) -> Tensor:
        """Returns a frozen text tower's features of n texts, ``(n, F_t)`` float32 on the CPU.

        Texts that are not yet known are looked up among the captions of records in `known`. Only the rest are computed.
        """
        for features in known.of_rows.values():
            if missing := set(texts) - known.of_texts.keys():
                self._find(features, missing, known)
        if missing := set(texts) - known.of_texts.keys():
            towers, device = frozen_towers(model), next(model.parameters()).device
            assert towers.text is not None
            others, passes = sorted(missing), Passes(device, self._views.tokenizer)
            with frozen(model):
                made = passes.of_texts(method_of(model, "text_features"), towers.text, towers.text_width, others)
            known.of_texts.update(zip(others, made.clone(), strict=True))
        return torch.stack([known.of_texts[text] for text in texts])

    def _find(self, features: Features, texts: set[str], known: _Known) -> None:
        """Looks for texts among records' captions, and adds the features of the texts that it finds to `known`.

        Args:
            features: Features of the records.
            texts: Texts to look for.
            known: Known features, to which this method adds.
        """
        for number, shard in enumerate(features.shards()):
            if shard.text is None:
                return
            rows = features.rows[number * SHARD : (number + 1) * SHARD]
            captions = [text for of_record in self._store.captions(rows) for text in of_record]
            known.of_texts.update((text, vector) for text, vector in zip(captions, shard.text, strict=True) if text in texts)


class _OfFrozen(Embedder):
    """Embeds records by the part of a model that follows its frozen towers, from the features of these towers.

    Args:
        whole: Embedder of the whole model.
        rest: Model that continues from the features of the towers (`from_features`).
        once: Object that looks up or computes the features.
    """

    def __init__(self, whole: Embedder, rest: nn.Module, once: TowersOnce) -> None:
        text = frozen_towers(whole.model).text
        tokenizer = whole.tokenizer if text is None or whole.tokenizer is None else self._texts
        super().__init__(rest, whole.read, whole.images_fn, tokenizer, whole.device)
        self._whole, self._once = whole.model, once

    @functools.cached_property
    def _known(self) -> _Known:
        return self._once.known(self._whole)

    def _texts(self, texts: list[str]) -> Tensor:
        return self._once.texts(self._whole, self._known, texts)

    def _reader(self, indices: np.ndarray) -> Callable[[np.ndarray], Tensor]:
        features = self._once.features(self._whole, self._known, indices)

        def read(part: np.ndarray) -> Tensor:
            views = np.zeros((len(part), 1), dtype=np.int64)
            return features.images(features.positions(part), views)[:, 0].to(self.device)

        return read
