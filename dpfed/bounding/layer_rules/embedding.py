"""Covers embedding tables: a group's gradient is 0 except in the rows of its own tokens, so it is never stored in full."""

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
    """Computes and records ``F.embedding`` of tokens ``(n k, ...)``, of n records with k rows each."""
    target = recorder.target(weight)
    if target is None or max_norm is not None or scale_grad_by_freq:
        return NotImplemented

    def terms(gradient: Tensor) -> list[Term]:
        if padding_idx is not None:  # as in torch, the padding's vector is not trained
            gradient = gradient.masked_fill((input == padding_idx % len(weight))[..., None], 0.0)
        kind = EmbeddingOfPlaces if recorder.grouping.batched else EmbeddingWeight
        return [kind(target, input, gradient, len(weight), recorder.grouping)]

    return recorder.collect(func(input, weight.detach()), input, terms)


class EmbeddingWeight:
    """The gradients of a table ``(V, D)`` with V tokens, for one group after the other.

    Args:
        target: Destination of the table's gradient.
        tokens: Tokens ``(n k, ...)`` int64.
        gradients: Gradients ``(n k, ..., D)`` of the vectors that were looked up.
        vocabulary: V, the number of rows of the table.
        grouping: Grouping of the records.
    """

    slack = 0.0

    def __init__(self, target: Target, tokens: Tensor, gradients: Tensor, vocabulary: int, grouping: Grouping) -> None:
        self.target = target
        group = grouping.of_rows(tokens)
        tokens, rows = tokens[: len(group)], gradients[: len(group)].flatten(0, -2)
        # A group's gradient has one row per token that occurs in it: the sum over its occurrences.
        pairs, place = torch.unique(group.view(-1, *[1] * (tokens.dim() - 1)) * vocabulary + tokens, return_inverse=True)
        # Unlike ``index_add_``, this adds up in a fixed order on every device.
        added = torch.ops.aten.embedding_dense_backward(rows, place.flatten(), len(pairs), -1, False)
        counts = torch.bincount(pairs // vocabulary, minlength=grouping.count).tolist()
        self._rows, self._tokens = added.split(counts), (pairs % vocabulary).split(counts)
        self.squares = foreach.norms(self._rows, grouping.exact).square()

    def parts(self, group: int) -> list[Tensor]:
        """Returns the tensors from which the group's gradient is computed, see `Term.parts`."""
        return [self._rows[group], self._tokens[group]]

    def add_weighted(self, factors: Tensor, parts: Sequence[Tensor]) -> None:
        """Adds up the groups' gradients, each times its factor, see `Term.add_weighted`."""
        into = self.target.of(parts)
        for rows, tokens, factor in zip(self._rows, self._tokens, factors.tolist(), strict=False):
            if factor > 0:
                if into.is_floating_point():
                    into.index_add_(0, tokens, rows.to(into.dtype), alpha=factor)
                else:
                    into.index_add_(0, tokens, foreach.whole(rows, factor, into.dtype))


class EmbeddingOfPlaces:
    """The gradients of a table ``(V, D)`` with V tokens, for all places of a pass at once.

    No shape depends on the tokens, so nothing has to be read back from the device. Tokens are sorted within each group. The sum
    over all occurrences of a token in a group is stored at the token's first occurrence, and zeros at its other occurrences. So
    a group's rows stay at the positions of the group's records.

    Args:
        target: Destination of the table's gradient.
        tokens: Tokens ``(n k, ...)`` int64.
        gradients: Gradients ``(n k, ..., D)`` of the vectors that were looked up.
        vocabulary: V, the number of rows of the table.
        grouping: Grouping of the records.
    """

    slack = 0.0

    def __init__(self, target: Target, tokens: Tensor, gradients: Tensor, vocabulary: int, grouping: Grouping) -> None:
        self.target, self._vocabulary, self._grouping = target, vocabulary, grouping
        self._of_records = grouping.of_records(tokens)  # fillers included
        owner = self._of_records.view(-1, *[1] * (tokens.dim() - 1)).expand(tokens.shape).flatten()
        pairs, order = torch.sort(owner * vocabulary + tokens.flatten(), stable=True)
        number = torch.arange(len(pairs), device=pairs.device)
        is_first = torch.cat([pairs.new_ones(1, dtype=torch.bool), pairs[1:] != pairs[:-1]])
        first = torch.where(is_first, number, 0).cummax(0).values
        rows = gradients.flatten(0, -2)[order]
        self._tokens, self._owner = pairs % vocabulary, pairs // vocabulary
        self._rows = torch.ops.aten.embedding_dense_backward(rows, first, len(pairs), -1, False)
        lengths = torch.linalg.vector_norm(self._rows, dim=1, dtype=grouping.exact).square()
        by_record = lengths.view(grouping.records, -1).sum(1)
        self.squares = grouping.by_place(by_record).sum(1)[: grouping.count]

    def parts(self, group: int) -> list[Tensor]:
        """Returns the tensors from which the group's gradient is computed, see `Term.parts`."""
        records = self._grouping.records_of(group)
        return [whole.unflatten(0, (self._grouping.records, -1))[records] for whole in (self._rows, self._tokens)]

    def add_weighted(self, factors: Tensor, parts: Sequence[Tensor]) -> None:
        """Adds up the weighted gradients, see `Term.add_weighted`; in float64, in which sums of integers are exact."""
        into = self.target.of(parts)
        weights = torch.cat([factors, factors.new_zeros(1)])[self._owner][:, None]
        rows = self._rows.to(self._grouping.exact).masked_fill(weights == 0, 0.0) * weights
        rows = rows if into.is_floating_point() else rows.trunc_()
        added = torch.ops.aten.embedding_dense_backward(rows, self._tokens, self._vocabulary, -1, False)
        into.add_(added.to(into.dtype))
