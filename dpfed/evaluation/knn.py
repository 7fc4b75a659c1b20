"""k-nearest-neighbour accuracy: a measure of frozen features that needs no training."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

CELLS = 2**26  # similarities in memory at a time when no chunk is given: 256 MiB of float32


@torch.no_grad()
def knn_correct(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    k: int = 3,
    temperature: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Returns whether the k nearest training records predict the right label, for each test record.

    Nearness is cosine similarity. The label with the most votes wins; among labels with equally many votes, the label of the
    nearest record wins. Two conventions are usual: ``k=3`` with one vote each (the DP-GCL paper), and ``k=200`` with votes
    weighted by ``exp(similarity / 0.1)`` (Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance
    Discrimination"; the default of the lightly library).

    Args:
        train_x: Features of labelled training records, shape ``(n, F)``.
        train_y: Labels of the training records, int64 ``(n,)``, 0 and above.
        test_x: Features of test records, shape ``(m, F)``.
        test_y: Labels of the test records, int64 ``(m,)``.
        k: Number of neighbours that vote, at least 1; all n training records vote if n is smaller.
        temperature: Temperature above 0 of the vote weights ``exp(similarity / temperature)``; ``None``: each neighbour has one
            vote.
        chunk: Number of test records compared at a time; default: as many as keep the similarities within 256 MiB.

    Returns:
        Whether each test record is right, bool ``(m,)`` on the CPU.

    Raises:
        ValueError: If there are no training or no test records, records and labels differ in number, or a training label is
            negative.
    """
    _check(train_x, train_y, test_x, test_y)
    k = min(k, len(train_x))
    chunk = chunk or max(1, CELLS // len(train_x))
    classes = int(train_y.max()) + 1
    bank = normalize(train_x.float(), dim=1)
    right = []
    for start in range(0, len(test_x), chunk):
        query = normalize(test_x[start : start + chunk].float(), dim=1)
        similarity, neighbour = (query @ bank.T).topk(k, dim=1)  # (c, k), nearest first
        label = train_y[neighbour]
        # Subtracting the nearest similarity scales a query's votes alike and keeps exp() in range.
        weight = torch.ones_like(similarity) if temperature is None else ((similarity - similarity[:, :1]) / temperature).exp()
        votes = torch.zeros(len(query), classes, device=query.device).scatter_add_(1, label, weight)
        # argmax takes the first of equals, and neighbours are ordered by nearness: that is the rule for ties.
        winner = votes.gather(1, label).argmax(dim=1, keepdim=True)
        right.append((label.gather(1, winner).squeeze(1) == test_y[start : start + chunk]).cpu())
    return torch.cat(right)


def _check(train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor) -> None:
    if not len(train_x) or not len(test_x):
        raise ValueError(f"k-NN needs training and test records, got {len(train_x)} and {len(test_x)}")
    if len(train_x) != len(train_y) or len(test_x) != len(test_y):
        raise ValueError("k-NN needs one label for each record")
    if int(train_y.min()) < 0:
        raise ValueError("k-NN got a negative training label: leave unlabelled records out")
