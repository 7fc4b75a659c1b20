"""Makes the input of a worker's model in training: random views of images and texts, or features of frozen towers."""

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
    """Makes the input of a worker's model in training.

    Attributes:
        whole: Views that turn records into the input of a whole model.
        cached: V, number of views of each image whose features a frozen tower computes once. 0: no view is cached, and unless
            `fixed` is set, the model reads images.
        fixed: Whether each step reads the same features of a record: the features of all cached views or, if `cached` is 0, of
            the plain image. `trained` then returns the whole model with its frozen towers. `fixed` is ``True`` in runs with
            ``bounding.method = "moments"``.
        cache: Cache that computes and keeps the features.
        label: Name of the label that the loss reads; ``None``: the loss reads no label.
    """

    whole: RecordViews
    cached: int = 0
    fixed: bool = False
    cache: FeatureCache = field(default_factory=FeatureCache)
    label: str | None = None

    @property
    def from_features(self) -> bool:
        """Returns whether a worker trains only the part of its model that follows the frozen towers."""
        return bool(self.cached) and not self.fixed

    def trained(self, model: nn.Module) -> nn.Module:
        """Returns the module that a worker trains: the model, or the part of the model that follows its frozen towers.

        This part uses the same parameters as the model.
        """
        return from_features(model) if self.from_features else model

    def maker(self, model: nn.Module, store: RecordSet, rows: np.ndarray | PartitionRows) -> ViewMaker:
        """Returns the object that makes the training views. Features that are needed and not in the cache are computed first.

        Args:
            model: Whole model, whose frozen towers compute the features.
            store: Records.
            rows: Rows of the store whose views will be needed, ``(n,)``.

        Raises:
            UserError: If features are needed, and `FeatureCache.features` raises one.
            OSError: If features are needed and cannot be written.
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
