"""What every rule comes down to: one parameter's gradient, group by group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from dpfed.bounding.layer_rules.grouping import Grouping

View = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Target:
    """Where a gradient goes: a trainable parameter, or a view of one.

    Attributes:
        parameter: its number among the trainable ones.
        views: from the parameter to the tensor that the layer read, one after the other.
        part: which of several parts of a parameter that have nothing in common, if it has such.
    """

    parameter: int
    views: tuple[View, ...] = ()
    part: int | None = None

    def of(self, parts: Sequence[Tensor]) -> Tensor:
        """The place in a sum, cut up like the parameters."""
        part = parts[self.parameter]
        for view in self.views:
            part = view(part)
        return part

    def through(self, view: View) -> Target:
        """A view of this view."""
        return replace(self, views=(*self.views, view))

    def entry(self, number: int) -> Target:
        """One of the parts along the first dimension."""
        return replace(self.through(lambda whole: whole[number]), part=number)


class Term(Protocol):
    """The gradients of G groups with respect to one target, as far as they are needed.

    Attributes:
        target: the parameter.
        squares: ``(G,)`` squared norm of each group's gradient.
        slack: ``(G,)`` how far rounding may have moved that from the squared norm of what `add_weighted` adds, or 0.
    """

    @property
    def target(self) -> Target: ...  # noqa: D102

    @property
    def squares(self) -> Tensor: ...  # noqa: D102

    @property
    def slack(self) -> Tensor | float: ...  # noqa: D102

    def drop(self, groups: Tensor) -> None:
        """Sets the gradients of some groups to zero: ``(G,)`` bool, those that are not finite."""

    def add_weighted(self, factors: Tensor, into: Tensor) -> None:
        """Adds the weighted sum over the groups.

        Args:
            factors: ``(G,)`` float32, 0 for what was dropped.
            into: the target's place in the sum.
        """


@dataclass
class Materialised:
    """Gradients that are there: ``(G, ...)`` in the shape of the target."""

    target: Target
    gradients: Tensor
    grouping: Grouping
    slack: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.squares = self.grouping.squares(self.gradients)

    def drop(self, groups: Tensor) -> None:
        """See `Term`."""
        self.gradients[groups] = 0.0

    def add_weighted(self, factors: Tensor, into: Tensor) -> None:
        """See `Term`."""
        into.add_((factors @ self.gradients.reshape(len(factors), -1)).view(into.shape))


_ROUNDING = 1e-6  # relative: 16 roundings to float32, more than is seen in dot products of thousands of entries
_UNDERFLOW = 2.0**-126  # what a product in float32 may lose where it is too small for all its digits


def gram_squares(first: Tensor, second: Tensor, widths: tuple[int, int], exact: torch.dtype) -> tuple[Tensor, Tensor]:
    """Squared norms of sums of outer products, from the Gram matrices of both sides.

    ``||sum_t g_t a_t^T||^2 = sum_tu (a_t . a_u)(g_t . g_u)`` (Goodfellow 2015; Li et al. 2022 for sequences).

    Args:
        first: ``(G, T, T)`` inner products of the rows a_t; overwritten.
        second: ``(G, T, T)`` of the rows g_t.
        widths: entries of a row a_t, and of a row g_t.
        exact: type to add up in.

    Returns:
        ``(G,)`` squared norms, and ``(G,)`` how far rounding and underflow may have moved them.
    """
    squares_of = [gram.diagonal(dim1=1, dim2=2).clamp(min=0) for gram in (first, second)]
    # Where rows cancel, the sum is small beside its parts, and their rounding counts.
    parts = (squares_of[0].sqrt() * squares_of[1].sqrt()).sum(1, dtype=exact).square()
    # Where one side is tiny, its inner products vanish, and the other side may be as large as what is lost is small.
    longest = [each.amax(1).to(exact) for each in squares_of]
    lost = _UNDERFLOW * (widths[1] * longest[0] + widths[0] * longest[1] + 1) * first.shape[1] ** 2
    squares = first.mul_(second).sum((1, 2), dtype=exact).clamp(min=0)
    return squares, parts * _ROUNDING + 2 * lost


@dataclass
class OuterProducts:
    """A matrix ``(p, d)`` whose gradient is a sum of outer products of rows: of linear layers, and what comes down to them.

    Args:
        target: the matrix.
        inputs: ``(n k, ..., d)``, rows of the layer's input, detached.
        gradients: ``(n k, ..., p)``, rows of the gradient of its output.
        grouping: of the records.
    """

    target: Target
    inputs: Tensor
    gradients: Tensor
    grouping: Grouping

    def __post_init__(self) -> None:
        self.inputs = self.inputs.float()
        a = self.grouping.stacked(self.inputs, pad=False)
        g = self.grouping.stacked(self.gradients)
        (_, rows, d), p = a.shape, g.shape[2]
        self._products: Tensor | None = None
        self.slack: Tensor | float = 0.0
        usual = rows // self.grouping.longest * self.grouping.typical
        if gram_is_cheaper(usual, d, p):
            self.squares, self.slack = gram_squares(a @ a.mT, g @ g.mT, (d, p), self.grouping.exact)
        else:
            self._products = g.mT @ a
            self.squares = self.grouping.squares(self._products)
            self.inputs = self.gradients = self.inputs.new_empty(0)  # their memory is for the next layer

    def drop(self, groups: Tensor) -> None:
        """See `Term`."""
        if self._products is not None:
            self._products[groups] = 0.0
        else:
            rows = groups[self.grouping.of_rows(self.inputs)]
            self.inputs, self.gradients = self.inputs.clone(), self.gradients.clone()
            self.inputs[rows], self.gradients[rows] = 0.0, 0.0

    def add_weighted(self, factors: Tensor, into: Tensor) -> None:
        """See `Term`."""
        if self._products is not None:
            into.add_((factors @ self._products.flatten(1)).view(into.shape))
        else:
            g = self.grouping.scaled(self.gradients, factors).flatten(0, -2)
            into.addmm_(g.mT, self.inputs.flatten(0, -2))


# Writing a gradient, reading it for its norm and again for the sum costs about as much time as so many multiplications.
_MULTIPLICATIONS_PER_ENTRY = 100


def gram_is_cheaper(rows: int, d: int, p: int, multiplications: float | None = None) -> bool:
    """Whether the norm of a ``(p, d)`` gradient of T rows costs less by Gram matrices than by writing it down.

    Gram matrices need ``T^2 (d + p)`` multiplications and the weighted product, of all groups at once, ``T d p``; written
    down, the gradient takes those ``T d p`` and the way of its ``d p`` entries through memory and back.

    Args:
        rows: T.
        d: entries of a row of the input.
        p: entries of a row of the output.
        multiplications: of each of the T^2 pairs, where they are not ``d + p``.
    """
    return rows * rows * (d + p if multiplications is None else multiplications) < _MULTIPLICATIONS_PER_ENTRY * d * p
