"""Defines terms, by which rules describe gradients: a term has the gradients of all groups with respect to one parameter.

A pass has a fixed number of places, each of which holds one group or none (`dpfed.bounding.layer_rules.grouping`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from dpfed.bounding import foreach
from dpfed.bounding.clipping import BLOCK
from dpfed.bounding.layer_rules.grouping import Gradients, Grouping, precise
from dpfed.bounding.places import aligned

View = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Target:
    """Destination of a gradient: a trainable parameter, or a view of one.

    Attributes:
        parameter: Index of the parameter among the trainable parameters.
        views: Views that lead, one after the other, from the parameter to the tensor that the layer read.
        part: Index of the target among the disjoint parts of its parameter; ``None`` if the target is not such a part.
    """

    parameter: int
    views: tuple[View, ...] = ()
    part: int | None = None

    def of(self, parts: Sequence[Tensor]) -> Tensor:
        """Returns the view of a sum to which the target's gradient is added.

        Args:
            parts: Views of the sum, one for each trainable parameter.
        """
        part = parts[self.parameter]
        for view in self.views:
            part = view(part)
        return part

    def through(self, view: View) -> Target:
        """Returns the target of a tensor that is a view of this target's tensor."""
        return replace(self, views=(*self.views, view))

    def entry(self, number: int) -> Target:
        """Returns the target of the part with this index along the first dimension."""
        return replace(self.through(lambda whole: whole[number]), part=number)


class Term(Protocol):
    """The gradients of G groups with respect to one target: their norms and their weighted sum.

    Every bit of a group's figures depends on the group's own rows of the pass alone.

    Attributes:
        target: Destination of the gradient.
        squares: Squared norm of each group's gradient, ``(G,)``.
        slack: Bound ``(G,)`` on the difference that rounding makes between `squares` and the squared norms of the gradients
            that `add_weighted` adds; 0 if they are equal.
    """

    @property
    def target(self) -> Target: ...  # noqa: D102

    @property
    def squares(self) -> Tensor: ...  # noqa: D102

    @property
    def slack(self) -> Tensor | float: ...  # noqa: D102

    def parts(self, group: int) -> list[Tensor]:
        """Returns tensors that determine the group's gradient: the gradient itself, or the rows from which it is computed."""

    def add_weighted(self, factors: Tensor, parts: Sequence[Tensor]) -> None:
        """Adds up the groups' gradients, each times its factor (`dpfed.bounding.foreach.add_`).

        A group whose factor is 0 is left out, so its gradient need not be finite.

        Args:
            factors: Factors ``(G,)`` float32.
            parts: Views of the sum, one for each trainable parameter, which are changed in place. They are integers, or floats
                in runs without privacy.
        """


@dataclass
class Materialised:
    """Gradients that are materialised, that is, computed and kept in memory.

    Args:
        target: Destination of the gradients.
        gradients: Gradients of each group, in the shape of the target, or of the view that `place` returns.
        grouping: Grouping of the records.
        place: Function from the target's view in a sum to the view to which the gradients are added; default: the same view.
    """

    target: Target
    gradients: Gradients
    grouping: Grouping
    place: View | None = None
    slack: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.gradients, list) and self.grouping.has_kernels_for(self.gradients[0]):
            stacked = torch.stack(self.gradients)  # more groups than `GROUPS_OF_A_PASS` are summed in blocks
            missing = self.grouping.places - len(stacked)
            self.gradients = torch.cat([stacked, stacked.new_zeros(missing, *stacked.shape[1:])])
        self.squares = squares_of(self.gradients, self.grouping)

    def parts(self, group: int) -> list[Tensor]:
        """Returns the tensors from which the group's gradient is computed, see `Term.parts`."""
        return [self.gradients[group]]

    def add_weighted(self, factors: Tensor, parts: Sequence[Tensor]) -> None:
        """Adds up the groups' gradients, each times its factor, see `Term.add_weighted`."""
        into = self.target.of(parts)
        add_weighted(self.gradients, factors, into if self.place is None else self.place(into))


def add_weighted(gradients: Gradients, factors: Tensor, place: Tensor) -> None:
    """Adds up gradients, each times its factor, see `Term.add_weighted`.

    Args:
        gradients: Gradients of the groups.
        factors: Factors ``(G,)``, or ``(places,)`` for gradients of all places.
        place: View of the sum to which the gradients are added.
    """
    if isinstance(gradients, Tensor):
        flat = gradients.reshape(len(gradients), -1)
        if flat.dtype != torch.float64:
            from dpfed.bounding.kernels import weighted_sum

            place.add_(weighted_sum(flat, factors, BLOCK, place.dtype).view(place.shape))
            return
        weights = factors.to(flat.dtype).unsqueeze(1)
        weighted = flat.masked_fill(weights == 0, 0.0) * weights  # 0 * inf is not 0
        place.add_(weighted.to(place.dtype).sum(0).view(place.shape))
        return
    # 0 * inf is not 0: a gradient whose factor is 0 is left out.
    kept = [(gradient, factor) for gradient, factor in zip(gradients, factors.tolist(), strict=False) if factor > 0]
    terms, multipliers = [gradient for gradient, _ in kept], [factor for _, factor in kept]
    if not place.is_floating_point() and foreach.add_side_by_side_(place, terms, multipliers):
        return
    for gradient, factor in kept:
        foreach.add_([place], [gradient.view(place.shape)], factor)


def squares_of(gradients: Gradients, grouping: Grouping) -> Tensor:
    """Returns the squared norm of each group's gradient, ``(G,)``, added up in the grouping's exact dtype."""
    if isinstance(gradients, Tensor):
        flat = gradients.reshape(len(gradients), -1)
        if grouping.has_kernels_for(flat):
            from dpfed.bounding.kernels import squares

            return squares(flat)[: grouping.count]
        return torch.linalg.vector_norm(flat, dim=1, dtype=grouping.exact)[: grouping.count].square()
    return foreach.norms(gradients, grouping.exact).square()


# Relative error: 16 roundings, more than occurs in dot products of thousands of entries.
_ROUNDING = {torch.float32: 1e-6, torch.float64: 2e-15}
_UNDERFLOW = 2.0**-126  # largest loss of a float32 product that underflows


def gram_squares(a: Tensor, g: Tensor, exact: torch.dtype) -> tuple[Tensor, Tensor]:
    """Computes the squared norm of a sum of outer products from the Gram matrices of both sides.

    ``||sum_t g_t a_t^T||^2 = sum_tu (a_t . a_u)(g_t . g_u)`` (Goodfellow 2015; Li et al. 2022 for sequences).

    Args:
        a: Rows a_t, ``(T, d)``.
        g: Rows g_t, ``(T, p)``.
        exact: Dtype in which to add up.

    Returns:
        The squared norm, and a bound on its error from rounding and underflow: scalars.
    """
    first, second = a @ a.mT, g @ g.mT
    lengths = [gram.diagonal().clamp(min=0) for gram in (first, second)]
    # Where rows cancel, the sum is small relative to its parts, and their rounding matters.
    parts = (lengths[0].sqrt() * lengths[1].sqrt()).sum(dtype=exact).square()
    # Where one side is tiny, its inner products underflow, and the other side may be large enough to make the loss matter.
    longest = [each.amax().to(exact) for each in lengths]
    lost = _UNDERFLOW * (g.shape[1] * longest[0] + a.shape[1] * longest[1] + 1) * len(a) ** 2
    squares = first.mul_(second).sum(dtype=exact).clamp(min=0)
    return squares, parts * _ROUNDING[first.dtype] + 2 * lost


class OuterProducts:
    """Gradients of a matrix ``(p, d)`` that are sums of outer products of rows, as those of a linear layer are.

    If Gram matrices are cheap, the norms are computed from these matrices. The gradients are then computed later, one group
    after the other, when they are added to the sum. Each gradient is first computed in full, and then multiplied by its
    clipping factor; its outer products are not weighted one by one. So rounding errors are small compared with the clip norm C,
    even if the outer products nearly cancel.

    Args:
        target: Destination of the matrix's gradient.
        inputs: Rows of the layer's input, ``(n k, ..., d)``, detached.
        gradients: Rows of the gradient of the layer's output, ``(n k, ..., p)``.
        grouping: Grouping of the records.
        place: Function from the target's view in a sum to the view to which the matrix is added; default: the same view.
    """

    def __init__(
        self, target: Target, inputs: Tensor, gradients: Tensor, grouping: Grouping, place: View | None = None
    ) -> None:
        self.target, self._place = target, place
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._products: Gradients = []
        self._exact = grouping.exact
        if grouping.has_kernels_for(inputs):
            self._products = _of_places(inputs, gradients, grouping)
            self._found = squares_of(self._products, grouping), 0.0
            return
        a, g = ([rows.flatten(0, -2) for rows in grouping.split(side)] for side in (precise(inputs), gradients))
        d, p = inputs.shape[-1], gradients.shape[-1]
        usual = grouping.typical * grouping.per_record(inputs) * (inputs[0].numel() // d)
        if inputs.device.type == "cpu" and gram_is_cheaper(usual, d, p):
            # The bits of a Gram matrix depend on the alignment of its rows, and so on the group's position.
            self._rows = [(aligned(rows_a), aligned(rows_g)) for rows_a, rows_g in zip(a, g, strict=True)]
        else:
            self._products = [rows_g.mT @ rows_a for rows_a, rows_g in zip(a, g, strict=True)]
            self._found = squares_of(self._products, grouping), 0.0

    @functools.cached_property
    def _found(self) -> tuple[Tensor, Tensor | float]:
        """Squares and slack from Gram matrices.

        They are computed after the pass. During the pass, `dpfed.bounding.places` may pad products, and Gram matrices need no
        padding.
        """
        squares, slack = zip(*(gram_squares(a, g, self._exact) for a, g in self._rows), strict=True)
        return torch.stack(squares), torch.stack(slack)

    @property
    def squares(self) -> Tensor:
        """Squared norm of each group's gradient, see `Term`."""
        return self._found[0]

    @property
    def slack(self) -> Tensor | float:
        """Bound on the rounding error of `squares`, see `Term`."""
        return self._found[1]

    def parts(self, group: int) -> list[Tensor]:
        """Returns the tensors from which the group's gradient is computed, see `Term.parts`."""
        return list(self._rows[group]) if self._rows else [self._products[group]]

    def add_weighted(self, factors: Tensor, parts: Sequence[Tensor]) -> None:
        """Adds up the groups' gradients, each times its factor, see `Term.add_weighted`."""
        into = self.target.of(parts)
        if not self._rows:
            add_weighted(self._products, factors, into if self._place is None else self._place(into))
            return
        d, p = (rows.shape[1] for rows in self._rows[0])
        there = self._place is None and into.is_contiguous()  # a view that is not contiguous is added to once
        total = into.view(p, d) if there else torch.zeros(p, d, dtype=into.dtype)
        blocks = total.split(max(_NUMBERS_OF_A_BLOCK // d, 16))
        product = torch.empty(blocks[0].shape, dtype=self._rows[0][0].dtype)
        for (a, g), factor in zip(self._rows, factors.tolist(), strict=False):
            if factor > 0:
                for block, slopes in zip(blocks, g.split(len(blocks[0]), dim=1), strict=True):
                    part = torch.mm(slopes.mT, a, out=product[: len(block)])
                    foreach.add_([block], [part], factor)
        if not there:
            place = into if self._place is None else self._place(into)
            place.add_(total.view(place.shape))


def _of_places(inputs: Tensor, gradients: Tensor, grouping: Grouping) -> Tensor:
    """Returns the sum of outer products for each place of the pass, ``(places, p, d)``, from one launch of a kernel."""
    from dpfed.bounding.kernels import outer_products

    a, g = (side.reshape(len(side), 1, -1, side.shape[-1]).contiguous() for side in (inputs, gradients.to(inputs.dtype)))
    return outer_products(g, a, grouping.offsets * grouping.per_record(inputs))[:, :, 0, 0]


_NUMBERS_OF_A_BLOCK = 1 << 19  # entries of a product that is added while a core's cache holds it
# Writing a gradient, reading it for its norm and keeping it for the sum take as long as this many multiplications per entry.
_MULTIPLICATIONS_PER_ENTRY = 40
_MULTIPLICATIONS_PER_CALL = 1 << 22  # the calls for two small matrices take as long as this many multiplications


def gram_is_cheaper(rows: int, d: int, p: int) -> bool:
    """Returns whether the norm of a ``(p, d)`` gradient of T rows costs less from Gram matrices than from the gradient.

    Gram matrices need ``T^2 (d + p)`` multiplications. A materialised gradient has ``d p`` entries, which are written to memory
    and read again.

    Args:
        rows: T, the number of rows of a group.
        d: Number of entries of a row of the input.
        p: Number of entries of a row of the output.
    """
    return rows * rows * (d + p) + _MULTIPLICATIONS_PER_CALL < _MULTIPLICATIONS_PER_ENTRY * d * p
