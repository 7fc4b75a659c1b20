"""Covers scales and shifts, for which a group's gradient is the sum of the group's rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from dpfed.bounding.layer_rules.grouping import Gradients, Grouping
from dpfed.bounding.layer_rules.term import Target, Term, add_weighted, squares_of


class RowSums:
    """Gradients that are sums of a group's rows, for one parameter or for several whose entries are concatenated.

    If all entries are in one tensor, one call per group computes the gradients of all parameters. Separate tensors would need
    one call per group and parameter, and these calls would take longer than the computation.

    Args:
        targets: Destinations of the parameters' gradients, with the number of entries of each.
        rows: Contribution of each row of the pass to the gradients, ``(n k, N)``: n records with k rows each, and N entries of
            all parameters.
        grouping: Grouping of the records.
    """

    slack = 0.0

    def __init__(self, targets: list[tuple[Target, int]], rows: Tensor, grouping: Grouping) -> None:
        self.targets, self.rows, self._grouping = targets, rows, grouping

    @classmethod
    def of(cls, target: Target, rows: Tensor, grouping: Grouping) -> RowSums:
        """Returns the `RowSums` of a single parameter, from rows ``(n k, ...)``, each of which has the parameter's shape."""
        flat = rows.flatten(1)
        return cls([(target, flat.shape[1])], flat, grouping)

    @property
    def target(self) -> Target:
        """The first of the targets; see `Term`."""
        return self.targets[0][0]

    @cached_property
    def _gradients(self) -> Gradients:
        return self._grouping.sums(self.rows)

    @cached_property
    def squares(self) -> Tensor:
        """Squared norm of each group's gradient, see `Term`."""
        return squares_of(self._gradients, self._grouping)

    def parts(self, group: int) -> list[Tensor]:
        """Returns the tensors from which the group's gradient is computed, see `Term.parts`."""
        return [self._gradients[group]]

    def add_weighted(self, factors: Tensor, parts: Sequence[Tensor]) -> None:
        """Adds up the groups' gradients, each times its factor, see `Term.add_weighted`."""
        total = self.rows.new_zeros(self.rows.shape[1], dtype=parts[0].dtype)
        add_weighted(self._gradients, factors, total)
        for (target, _), part in zip(self.targets, total.split([size for _, size in self.targets]), strict=True):
            place = target.of(parts)
            place.add_(part.view(place.shape))


def side_by_side(terms: Iterable[Term]) -> list[Term]:
    """Merges the `RowSums` that have equally many rows into one term; returns the merged terms and all other terms."""
    kept: list[Term] = []
    sums: dict[int, list[RowSums]] = defaultdict(list)
    for term in terms:
        if isinstance(term, RowSums):
            sums[len(term.rows)].append(term)
        else:
            kept.append(term)
    for alike in sums.values():
        targets = [target for term in alike for target in term.targets]
        kept.append(RowSums(targets, torch.cat([term.rows for term in alike], dim=1), alike[0]._grouping))
    return kept
