"""What a worker's model reads of its records: random views of images and texts, or features of frozen towers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import nn

from dpfed.data.record_set import RecordSet
from dpfed.data.sampling import PartitionRows
from dpfed.data.views.batches import ViewMaker
from dpfed.data.views.record_views import RecordViews
from dpfed.features.extraction import FeatureCache
from dpfed.features.towers import from_features, frozen_towers
from dpfed.features.views import CachedViews, FeatureViews


@dataclass(frozen=True)
class TrainingViews:
    """Makes what a worker's model reads of its records.

    Attributes:
        whole: Views that turn records into the input of a whole model.
        cached: V, views of each image whose features by a frozen tower are computed once; 0: the model reads images.
        fixed: Whether each step reads the same features of a record: all cached views, or with `cached` = 0 those of the plain
            image. The model is then kept whole. A run in closed form does so.
        cache: Keeps the features.
        label: Name of the label that the loss reads; ``None``: it reads none.
    """

    whole: RecordViews
    cached: int = 0
    fixed: bool = False
    cache: FeatureCache = field(default_factory=FeatureCache)
    label: str | None = None

    @property
    def from_features(self) -> bool:
        """Returns whether a worker trains what is left of its model behind the frozen towers."""
        return bool(self.cached) and not self.fixed

    def trained(self, model: nn.Module) -> nn.Module:
        """Returns the part of a model that a worker trains: the same parameters, with the views of `maker` as its input."""
        return from_features(model) if self.from_features else model

    def maker(self, model: nn.Module, store: RecordSet, rows: np.ndarray | PartitionRows) -> ViewMaker:
        """Makes the views of training; features that are not there yet are computed first.

        Args:
            model: The whole one, whose frozen towers give the features.
            store: The records.
            rows: ``(n,)`` of the store, of which views will be asked.
        """
        maker = self._maker(model, store, rows)
        if self.label is not None:
            maker.classes = store.labels[self.label]
        return maker

    def _maker(self, model: nn.Module, store: RecordSet, rows: np.ndarray | PartitionRows) -> ViewMaker:
        if not self.fixed and not self.cached:
            return self.whole.maker(store)
        features = self.cache.features(model, self.whole, store, np.asarray(rows), self.cached)
        if self.fixed:
            return FeatureViews(features, max(1, self.cached), self.whole.tokenizer is not None)
        return CachedViews(self.whole.maker(store), features, self.cached, frozen_towers(model).text is not None)
