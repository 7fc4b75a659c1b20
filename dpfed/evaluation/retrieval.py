"""Cross-modal retrieval: the rank of a query's best right answer among all candidates.

The right answers are a list of (image, text) pairs: an image may have several captions, and several images the same caption.
Metric names and the 1-based ranks follow open_clip.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dpfed.evaluation.intervals import Outcomes

RECALL_AT = (1, 5, 10)
CELLS = 2**26  # similarities in memory at a time when no chunk is given: 256 MiB of float32
PAIRS = 2**16  # right pairs whose embeddings are gathered at a time
TIE = 1e-6  # cosines that differ by less than float32 can resolve are ties


def right_pairs(captions: list[list[str]], units: np.ndarray | None = None) -> tuple[list[str], Tensor, Tensor]:
    """Returns the distinct captions, and the right (image, text) pairs.

    Equal captions are one text, which is right for every image that has it: if one of two identical candidates counted as
    wrong, the figure would measure chance.

    Args:
        captions: Captions of n images, at least one each.
        units: Units of the images, shape ``(n,)``: each caption of a unit is right for all images of the unit. ``None``: a
            caption is right only for the images that have it.

    Returns:
        The m distinct captions, and the P right pairs as indices of images ``(P,)`` and of texts ``(P,)``, int64.
    """
    numbers: dict[str, int] = {}
    of_images = [[numbers.setdefault(text, len(numbers)) for text in texts] for texts in captions]
    if units is not None:
        of_unit: dict[int, list[int]] = defaultdict(list)
        for unit, texts in zip(units.tolist(), of_images, strict=True):
            of_unit[unit] += texts
        of_images = [of_unit[unit] for unit in units.tolist()]
    pairs = [(image, text) for image, texts in enumerate(of_images) for text in dict.fromkeys(texts)]
    right_images, right_texts = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    return list(numbers), right_images, right_texts


def retrieval_metrics(
    image_z: Tensor, text_z: Tensor, pairs_image: Tensor, pairs_text: Tensor, chunk: int | None = None
) -> dict[str, float]:
    """Computes recall in both directions. See `retrieval_ranks` for the arguments and errors.

    Returns:
        The recalls in [0, 1], by the names ``{image_to_text,text_to_image}_R@{1,5,10}``.
    """
    by_direction = retrieval_ranks(image_z, text_z, pairs_image, pairs_text, chunk)
    metrics: dict[str, Outcomes] = {}
    for direction, ranked in by_direction.items():
        metrics |= summary(direction, ranked, np.arange(len(ranked)))
    return {name: outcomes.figure() for name, outcomes in metrics.items()}


@torch.no_grad()
def retrieval_ranks(
    image_z: Tensor, text_z: Tensor, pairs_image: Tensor, pairs_text: Tensor, chunk: int | None = None
) -> dict[str, Tensor]:
    """Computes the ranks of the best right answers in both directions.

    Args:
        image_z: Image embeddings, shape ``(n, D)``; this function normalises them.
        text_z: Text embeddings, shape ``(m, D)``; this function normalises them.
        pairs_image: Index of the image of each right pair, int64 ``(P,)``.
        pairs_text: Index of the text of each right pair, int64 ``(P,)``; every image and every text is in a pair.
        chunk: Number of queries compared at a time; default: as many as keep the similarities within 256 MiB.

    Returns:
        The ranks by direction: ``image_to_text``, int64 ``(n,)``, and ``text_to_image``, int64 ``(m,)``; see `ranks`.

    Raises:
        ValueError: If shapes are mismatched, an index is out of range, or an image or text is in no pair.
    """
    _check(image_z, text_z, pairs_image, pairs_text)
    return {
        "image_to_text": ranks(image_z, text_z, pairs_image, pairs_text, chunk),
        "text_to_image": ranks(text_z, image_z, pairs_text, pairs_image, chunk),
    }


@torch.no_grad()
def ranks(query: Tensor, candidate: Tensor, pair_query: Tensor, pair_candidate: Tensor, chunk: int | None = None) -> Tensor:
    """Returns the rank of the best right candidate of each query, int64 ``(n,)``.

    A rank is 1 + the number of wrong candidates that are at least as similar. The query's other right candidates do not
    compete. A tie never counts in the model's favour: if a model embeds all inputs alike, right candidates rank last.

    Args:
        query: Query embeddings, shape ``(n, D)``; this function normalises them.
        candidate: Candidate embeddings, shape ``(m, D)``; this function normalises them.
        pair_query: Index of the query of each right pair, int64 ``(P,)``.
        pair_candidate: Index of the candidate of each right pair, int64 ``(P,)``.
        chunk: Number of queries compared at a time; see `retrieval_ranks`.
    """
    query, candidate = normalize(query.float(), dim=1), normalize(candidate.float(), dim=1)
    pair_query, order = pair_query.sort()
    pair_candidate = pair_candidate[order]
    chunk = chunk or max(1, CELLS // len(candidate))
    right = torch.cat(
        [
            (query[q] * candidate[c]).sum(dim=1)
            for q, c in zip(pair_query.split(PAIRS), pair_candidate.split(PAIRS), strict=True)
        ]
    )
    best = torch.full((len(query),), -torch.inf, device=query.device).scatter_reduce_(0, pair_query, right, "amax")
    ranked = torch.empty(len(query), dtype=torch.int64, device=query.device)
    # One workspace for all chunks: freeing and allocating it again would take more time than the products.
    workspace = query.new_empty(min(chunk, len(query)), len(candidate))
    for start in range(0, len(query), chunk):
        part = query[start : start + chunk]
        stop = start + len(part)
        similarity = torch.mm(part, candidate.T, out=workspace[: len(part)])
        low, high = torch.searchsorted(pair_query, torch.tensor([start, stop], device=query.device)).tolist()
        similarity[pair_query[low:high] - start, pair_candidate[low:high]] = -torch.inf
        # Counted in place; float32 adds zeros and ones exactly up to 2^24. A NaN is not less, and so counts against the
        # model.
        less = similarity.lt_(best[start:stop, None] - TIE).sum(dim=1)
        ranked[start:stop] = 1 + len(candidate) - less.long()
    return ranked


def summary(direction: str, ranked: Tensor, clusters: np.ndarray) -> dict[str, Outcomes]:
    """Returns for each recall metric R@k, by its name, whether each query has a right answer among the first k candidates.

    Args:
        direction: Direction, ``image_to_text`` or ``text_to_image``.
        ranked: Ranks, shape ``(n,)``.
        clusters: Cluster numbers, int64 ``(n,)``, equal for queries that belong together.
    """
    numbers = ranked.double().cpu().numpy()
    return {f"{direction}_R@{k}": Outcomes((numbers <= k).astype(float), clusters) for k in RECALL_AT}


def chance_of_recall(name: str, right: Tensor, among: int) -> float:
    """Returns the recall if candidates are ordered at random: the mean over the queries of 1 - C(m - r, k)/C(m, k).

    C: the binomial coefficient.

    Args:
        name: Name of the metric, from `summary`; it ends in ``@k``.
        right: Number r of right candidates of each query, shape ``(n,)``.
        among: Number m of candidates.
    """
    missed = torch.ones(len(right), dtype=torch.float64)
    for drawn in range(min(int(name.rpartition("@")[2]), among)):
        missed *= (among - right - drawn).clamp(min=0) / (among - drawn)
    return float(1 - missed.mean())


def _check(image_z: Tensor, text_z: Tensor, pairs_image: Tensor, pairs_text: Tensor) -> None:
    n, m = len(image_z), len(text_z)
    if (
        not n
        or not m
        or image_z.shape[1:] != text_z.shape[1:]
        or pairs_image.dim() != 1
        or pairs_image.shape != pairs_text.shape
    ):
        raise ValueError(
            f"retrieval needs (n, D) images, (m, D) texts and (P,) indices of right pairs, got {tuple(image_z.shape)}, "
            f"{tuple(text_z.shape)}, {tuple(pairs_image.shape)} and {tuple(pairs_text.shape)}"
        )
    for name, indices, count in (("image", pairs_image, n), ("text", pairs_text, m)):
        partnered = indices.unique()  # ascending
        if len(partnered) and (int(partnered[0]) < 0 or int(partnered[-1]) >= count):
            raise ValueError(f"pairs_{name} must be in [0, {count}), got {int(partnered[0])} to {int(partnered[-1])}")
        if len(partnered) != count:
            raise ValueError(f"{count - len(partnered)} of {count} embeddings of {name}s are in no right pair: leave them out")
