"""Makes maps of a model's features of records by t-SNE (van der Maaten and Hinton 2008), coloured by label."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor
from torch.nn.functional import normalize

from dpfed.report.record_charts import COLOURED, EmbeddingMap, Points

if TYPE_CHECKING:
    from dpfed.data.record_set import RecordSet

DOTS = 300  # more dots make a page heavy, and hide each other
FEWEST = 12  # fewer records make no meaningful map
LABELS = 3  # labels for which a map is drawn
_PERPLEXITY = 20.0


def embedding_maps(features: list[Tensor], store: RecordSet, indices: np.ndarray) -> tuple[EmbeddingMap, ...]:
    """Returns a map for each of the first three labels that any of the records has.

    All maps have the same positions; each is coloured by its own label. Of more than 300 records, 300 random ones are shown.
    The result is empty if no record has a label, or there are fewer than 12 records.

    Args:
        features: For each model, its features of n records, ``(n, F)``; the trained model is last.
        store: Records with their labels; the caller has checked that they are public.
        indices: Indices of the records, ``(n,)``.
    """
    columns = [name for name in store.labels if (store.labels[name][indices] >= 0).any()][:LABELS]
    chosen = np.sort(np.random.default_rng(0).permutation(len(indices))[:DOTS])  # a store may be ordered by class
    if not columns or len(chosen) < FEWEST:
        return ()
    places = [places_of(z[chosen]) for z in features]
    return tuple(_coloured(name, store, indices[chosen], places) for name in columns)


def places_of(features: Tensor) -> Points:
    """Computes two coordinates in [0, 1] for each record by t-SNE; records with similar features lie near each other.

    Args:
        features: Features, ``(n, F)``, n at least 3.
    """
    from sklearn.manifold import TSNE  # takes a second

    x = normalize(features.float(), dim=1).double().nan_to_num().numpy()
    if not x.std(axis=0).any():  # the model gives the same features for every record
        return ((0.5, 0.5),) * len(x)
    perplexity = min(_PERPLEXITY, (len(x) - 1) / 3)
    start = "pca" if min(x.shape) >= 2 else "random"
    positions = TSNE(2, perplexity=perplexity, init=start, random_state=0).fit_transform(x)
    low, high = positions.min(axis=0), positions.max(axis=0)
    return tuple((round(a, 4), round(b, 4)) for a, b in ((positions - low) / np.maximum(high - low, 1e-12)).tolist())


def most_frequent(labels: np.ndarray, count: int, most: int) -> list[int]:
    """Returns the most frequent classes that have records, at most `most`, in the order of their numbers.

    Args:
        labels: Class numbers, ``(n,)``; -1: the record has no class.
        count: Number of classes.
        most: Largest number of classes to return.
    """
    sizes = np.bincount(labels[labels >= 0], minlength=count)
    frequent = np.argsort(-sizes, kind="stable")[:most]
    return sorted(frequent[sizes[frequent] > 0].tolist())


def _coloured(name: str, store: RecordSet, indices: np.ndarray, places: list[Points]) -> EmbeddingMap:
    labels = np.asarray(store.labels[name][indices], dtype=np.int64)
    known = store.label_names.get(name, [])
    count = max(int(labels.max()) + 1, len(known))
    shown = most_frequent(labels, count, COLOURED)
    names = tuple(known[number] if number < len(known) else str(number) for number in shown)
    classes = tuple(shown.index(number) if number in shown else -1 for number in labels.tolist())
    return EmbeddingMap(name, names, classes, places[-1], places[0] if len(places) > 1 else ())
