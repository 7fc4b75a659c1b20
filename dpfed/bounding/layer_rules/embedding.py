"""Embedding tables: a group's gradient touches the rows of its own tokens only, and is never written down in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpfed.bounding import foreach
from dpfed.bounding.layer_rules.grouping import Grouping
from dpfed.bounding.layer_rules.term import Target, Term

if TYPE_CHECKING:
    from dpfed.bounding.layer_rules.recorder import Recorder


def embedding(
    recorder: Recorder,
    func: Callable,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """``F.embedding`` of tokens ``(n k, ...)``."""
    target = recorder.target(weight)
    if target is None or max_norm is not None or scale_grad_by_freq:
        return NotImplemented

    def terms(gradient: Tensor) -> list[Term]:
        if padding_idx is not None:  # torch: the padding's vector is not trained
            gradient = gradient.masked_fill((input == padding_idx % len(weight))[..., None], 0.0)
        return [EmbeddingWeight(target, input, gradient, len(weight), recorder.grouping)]

    return recorder.collect(func(input, weight.detach()), input, terms)


class EmbeddingWeight:
    """The gradients of a table ``(V, D)``.

    Args:
        target: the table.
        tokens: ``(n k, ...)`` int64.
        gradients: ``(n k, ..., D)`` of the vectors that were looked up.
        vocabulary: V.
        grouping: of the records.
    """

    slack = 0.0

    def __init__(self, target: Target, tokens: Tensor, gradients: Tensor, vocabulary: int, grouping: Grouping) -> None:
        self.target, self._many = target, grouping.batched
        group = grouping.of_rows(tokens)
        tokens, rows = tokens[: len(group)], gradients[: len(group)].flatten(0, -2)
        # A group's gradient has one row per token that occurs in it: the sum over its occurrences.
        pairs, place = torch.unique(group.view(-1, *[1] * (tokens.dim() - 1)) * vocabulary + tokens, return_inverse=True)
        # Unlike ``index_add_`` in a fixed order on every device.
        added = torch.ops.aten.embedding_dense_backward(rows, place.flatten(), len(pairs), -1, False)
        counts = torch.bincount(pairs // vocabulary, minlength=grouping.count).tolist()
        self._rows, self._tokens = added.split(counts), (pairs % vocabulary).split(counts)
        self.squares = foreach.norms(self._rows, grouping.exact).square()

    def parts(self, group: int) -> list[Tensor]:
        """See `Term`."""
        return [self._rows[group], self._tokens[group]]

    def add_weighted(self, factors: Tensor, parts: Sequence[Tensor]) -> None:
        """See `Term`."""
        into = self.target.of(parts)
        total = into.double() if self._many else into  # more than `GROUPS_OF_A_PASS` are not added up in float32
        for rows, tokens, factor in zip(self._rows, self._tokens, factors.tolist(), strict=False):
            if factor > 0:
                total.index_add_(0, tokens, rows.to(total.dtype), alpha=factor)
        if self._many:
            into.copy_(total)
