"""Cross-modal retrieval: where a query's true partner stands among all candidates.

Metric names and the 1-based ranks follow open_clip; several captions per image are supported.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

RECALL_AT = (1, 5, 10)
CELLS = 2**26  # similarities in memory at a time when no chunk is given: 256 MiB of float32
TIE = 1e-6  # cosines nearer than float32 can tell apart are ties


@torch.no_grad()
def retrieval_metrics(image_z: Tensor, text_z: Tensor, text_to_image: Tensor, chunk: int | None = None) -> dict[str, float]:
    """Recall and ranks in both directions.

    A query's rank is 1 + the number of wrong candidates that are at least as similar as the right one: a tie never counts
    in the model's favour, so an embedding that says the same of everything ranks last. From image to text the right
    candidate is the best of the image's own captions, and its other captions do not compete with it.

    Args:
        image_z: ``(n, D)`` image embeddings; normalised here.
        text_z: ``(m, D)`` caption embeddings; normalised here.
        text_to_image: ``(m,)`` int64, the index in ``image_z`` of each caption's image.
        chunk: queries compared at a time; by default as many as keep the similarities within 256 MiB.

    Returns:
        ``{image_to_text,text_to_image}_R@{1,5,10}`` in [0, 1] and ``_mean_rank``, ``_median_rank``, 1 and above.

    Raises:
        ValueError: for mismatched shapes, an index out of range, or an image without a caption.
    """
    _check(image_z, text_z, text_to_image)
    image_z, text_z = normalize(image_z.float(), dim=1), normalize(text_z.float(), dim=1)
    captions = torch.arange(len(text_z), device=text_z.device)
    by_image = text_to_image.argsort(stable=True)
    metrics = _summary("image_to_text", _ranks(image_z, text_z, text_to_image[by_image], captions[by_image], chunk))
    return metrics | _summary("text_to_image", _ranks(text_z, image_z, captions, text_to_image, chunk))


def _ranks(query: Tensor, candidate: Tensor, pair_query: Tensor, pair_candidate: Tensor, chunk: int | None) -> Tensor:
    """Ranks (n,) of the best right candidate of each query; (pair_query, pair_candidate) lists what is right, by query."""
    chunk = chunk or max(1, CELLS // len(candidate))
    right = torch.cat(
        [
            (query[q] * candidate[c]).sum(dim=1)
            for q, c in zip(pair_query.split(2**16), pair_candidate.split(2**16), strict=True)
        ]
    )
    best = torch.full((len(query),), -torch.inf, device=query.device).scatter_reduce_(0, pair_query, right, "amax")
    ranks = []
    for start in range(0, len(query), chunk):
        similarity = query[start : start + chunk] @ candidate.T
        stop = start + len(similarity)
        low, high = torch.searchsorted(pair_query, torch.tensor([start, stop], device=query.device)).tolist()
        similarity[pair_query[low:high] - start, pair_candidate[low:high]] = -torch.inf
        ranks.append(1 + (similarity >= best[start:stop, None] - TIE).sum(dim=1))
    return torch.cat(ranks)


def _summary(direction: str, ranks: Tensor) -> dict[str, float]:
    metrics = {f"{direction}_R@{k}": float((ranks <= k).double().mean()) for k in RECALL_AT}
    metrics[f"{direction}_mean_rank"] = float(ranks.double().mean())
    metrics[f"{direction}_median_rank"] = float(np.median(ranks.cpu().numpy()))
    return metrics


def _check(image_z: Tensor, text_z: Tensor, text_to_image: Tensor) -> None:
    n, m = len(image_z), len(text_z)
    if not n or not m or image_z.shape[1:] != text_z.shape[1:] or text_to_image.shape != (m,):
        raise ValueError(
            f"retrieval needs (n, D) images, (m, D) texts and (m,) indices, got {tuple(image_z.shape)}, "
            f"{tuple(text_z.shape)} and {tuple(text_to_image.shape)}"
        )
    if int(text_to_image.min()) < 0 or int(text_to_image.max()) >= n:
        raise ValueError(f"text_to_image must be in [0, {n}), got {int(text_to_image.min())} to {int(text_to_image.max())}")
    if len(text_to_image.unique()) != n:
        raise ValueError("every image needs at least one caption: leave out those that have none")
