"""Embeds rows with linear heads, block by block, and computes the recall of matching rows."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from dpfed.arrays.refusal import ArrayError
from dpfed.arrays.rows import Rows
from dpfed.evaluation.retrieval import ranks
from dpfed.models.moments import PublishedHeads

_TOP = 10


@torch.inference_mode()
def embedded(rows: Rows, heads: dict[str, np.ndarray], side: Literal["image", "text"]) -> np.ndarray:
    """Maps rows to embeddings of unit length.

    Args:
        rows: Features.
        heads: Tensors of ``heads.safetensors`` by name.
        side: Tower whose head is applied.

    Returns:
        The embeddings, ``(n, D)``, or ``(n, V, D)`` for rows with views, float32; zeros for each row (or view of a row) whose
        numbers are all zero, or not all finite.
    """
    head = PublishedHeads({name: torch.from_numpy(value) for name, value in heads.items()}).head(side)
    width = head.matrix.shape[1]
    made = np.empty((len(rows), max(1, rows.views), width), np.float32)
    for numbers in rows.blocks():
        block = torch.from_numpy(rows.block(numbers))
        largest = block.abs().amax(-1, keepdim=True)
        there = block.isfinite().all(-1, keepdim=True) & (largest > 0)
        # Scaling does not change the result, as heads normalise features; it keeps large float64 numbers within float32.
        scaled = torch.where(there, block / torch.where(there, largest, 1.0), 0.0).float()
        made[numbers[0] : numbers[-1] + 1] = torch.where(there, F.normalize(head(scaled), dim=-1), 0.0).numpy()
    return made if rows.views else made[:, 0]


def recall(z: np.ndarray, w: np.ndarray) -> float:
    """Computes R@10, the fraction of rows whose partner is among the ten nearest, averaged over both directions.

    Args:
        z: Embeddings, ``(n, D)``.
        w: Embeddings of the partners in the same order, ``(n, D)``.

    Raises:
        ArrayError: If the matrices differ in length, or have ten rows or fewer: every row would be among the ten nearest.
    """
    if len(z) != len(w):
        raise ArrayError(
            f"X has {len(z):,} rows and Y {len(w):,}: row i of each must belong to one record. [arrays-score-lengths]"
        )
    if len(z) <= _TOP:
        raise ArrayError(f"score is R@{_TOP}, which needs more than {_TOP} rows: X has {len(z)}. [arrays-score-few]")
    rows, first, second = torch.arange(len(z)), torch.from_numpy(z), torch.from_numpy(w)
    of_both = [ranks(query, candidate, rows, rows) for query, candidate in ((first, second), (second, first))]
    return float(torch.stack(of_both).le(_TOP).double().mean())
