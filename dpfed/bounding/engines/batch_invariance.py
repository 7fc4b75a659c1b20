"""Checks that a device computes the same bits for a group, at any position in a pass and with any other groups in it.

A pass is one forward and one backward computation over the records of many groups. No library guarantees that the bits of one
group do not depend on the others. So an engine tests the device before its first pass, and can repeat the test during the run.
The test puts the same group, called a probe, into several passes, at different positions, and beside other groups whose values
are ordinary, huge or NaN. It compares all tensors from which the probe's contribution to the sum is computed.

The first test has probes of every size, and passes of every public shape; later tests use a few shapes. Some probes consist of
random records, some of nearly equal records, and some of equal records. If the results of a probe differ between two passes,
the test compares these passes operation by operation. The error names the first operation that differs, if there is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpfed.bounding.engines.engine import Views, draws
from dpfed.bounding.engines.padding import Padding
from dpfed.bounding.layer_rules.grouping import Grouping
from dpfed.bounding.layer_rules.term import Term
from dpfed.errors import UserError
from dpfed.objectives.classes import LABEL

_TRIALS = 6  # least number of passes
_CLASSES = 3
_NEARLY = 1e-3
_HUGE = 1e6


@dataclass(frozen=True)
class PassResult:
    """The result of a pass over groups, before any gradient is clipped.

    Attributes:
        terms: Gradients of all trainable parameters, each in the form of a `Term`.
        losses: Losses of the groups, ``(G,)``.
        grouping: Assignment of the pass's records to groups.
    """

    terms: list[Term]
    losses: Tensor
    grouping: Grouping

    def of(self, group: int) -> list[Tensor]:
        """Returns all tensors from which a group's contribution to the sum is computed; `group` is its number in the pass."""
        parts = [self.losses[group]]
        for term in sorted(self.terms, key=lambda term: (term.target.parameter, term.target.part or 0)):
            parts += [term.squares[group], *term.parts(group)]
            parts += [term.slack[group]] if isinstance(term.slack, Tensor) else []
        return parts


class PassFunction(Protocol):
    """A function that makes one pass over groups."""

    def __call__(self, views: Views, sizes: list[int], total: int | None = None) -> PassResult:
        """Makes the pass.

        Args:
            views: Views of the groups' records, one group after the other.
            sizes: Number of records of each group.
            total: Number of records of the pass, including fillers, which belong to no group; default: the smallest permitted
                number that has room for the groups.
        """


class DependsOnOthers(UserError):
    """Raised if the result of a group depends on the other groups of its pass, or if a model's random numbers may hide that."""


@dataclass(frozen=True)
class _Probe:
    """A group that the check compares with itself in several passes.

    Its views are generated again for each pass, because all probes together may need much memory.

    Attributes:
        size: Number of records.
        apart: Scale of the differences between the records. With 1, the records are independent noise; with 0, they are equal.
        seed: Seed of the noise.
    """

    size: int
    apart: float
    seed: int

    def views(self, like: Views, vocabulary: int) -> Views:
        """Generates the views of the records, with the shapes and dtypes of `like`."""
        generator = torch.Generator().manual_seed(self.seed)
        base, others = _noise(like, 1, vocabulary, generator), _noise(like, self.size, vocabulary, generator)
        together = {}
        for name, view in base.items():
            if view.is_floating_point():
                together[name] = self.apart * others[name] if self.apart in (0.0, 1.0) else view + self.apart * others[name]
            else:
                together[name] = others[name] if self.apart == 1.0 else view.expand(self.size, *view.shape[1:]).clone()
        return together


@dataclass(frozen=True)
class Trial:
    """One pass of the check.

    Attributes:
        views: Views of the groups' records, one group after the other.
        sizes: Number of records of each group.
        total: Number of records of the pass, fillers included.
        probes: For each group that is a probe: the group's position among the groups -> index of the probe.
    """

    views: Views
    sizes: list[int]
    total: int
    probes: dict[int, int]

    def rows(self, place: int) -> tuple[int, int]:
        """Returns the index of the first record of the group at position `place`, and the index after its last record."""
        return sum(self.sizes[:place]), sum(self.sizes[: place + 1])


def refusal_of_dropout(model: nn.Module) -> DependsOnOthers | None:
    """Returns the error for a model that may draw random numbers; ``None`` for all other models."""
    if not any(draws(module) for module in model.modules()):
        return None
    return DependsOnOthers(
        "the model has dropout or another layer that draws random numbers, so dpfed cannot check whether records that share a "
        "pass change each other's gradients: the engine takes one group at a time, as bounding.engine = 'loop' does. "
        "[engine-dropout]"
    )


def require_batch_invariance(
    run_pass: PassFunction,
    views: Views,
    padding: Padding,
    model: nn.Module,
    vocabulary: int = 3,
    brief: bool = False,
    before: int = 0,
) -> None:
    """Checks, at the model's current weights, that a group's result has the same bits in passes of every shape.

    A probe is a group that recurs in several passes, at other positions and with other groups.

    Args:
        run_pass: Function that makes a pass.
        views: Views of any records; only their shapes and dtypes are read.
        padding: Public shapes of passes.
        model: Model that the passes run.
        vocabulary: Number of distinct tokens that a text may contain.
        brief: Whether to compare in the smallest, the largest and a middle shape only, as a first test. A brief check does not
            suffice for private records.
        before: Number of earlier checks in this run. Checks after the first are short. Each has new random records, and
            takes the probes in another order.

    Raises:
        DependsOnOthers: If a group's result differs, or if the model draws random numbers, which would hide a difference.
    """
    if (refusal := refusal_of_dropout(model)) is not None:
        raise refusal
    seen: dict[int, tuple[Trial, int, list[Tensor]]] = {}
    alike: set[int] = set()  # probes that were compared: their parts are no longer kept
    if brief:
        middle, most = padding.totals[len(padding.totals) // 2], padding.totals[-1]
        totals: Iterable[int] | None = (padding.totals[0], most, middle, most, middle)
    elif before:
        totals = itertools.islice(itertools.cycle(padding.totals), 5 * before, 5 * before + _TRIALS)
    else:
        totals = None
    sizes = (2, 3, 5, _usual(padding)) if brief else None  # odd ones, too, so that other groups begin at odd rows
    for trial in trials(views, padding, totals, vocabulary, before, sizes):
        result = run_pass(trial.views, trial.sizes, trial.total)
        for place, probe in trial.probes.items():
            if probe in alike and not brief:
                continue
            parts = result.of(place)
            if probe not in seen:
                seen[probe] = trial, place, [part.clone() for part in parts]
                continue
            earlier, first_place, expected = seen[probe] if brief else seen.pop(probe)
            alike.add(probe)
            if not all(same(one, other) for one, other in zip(parts, expected, strict=True)):
                what = _first_difference(run_pass, vocabulary, (earlier, first_place), (trial, place))
                raise DependsOnOthers(
                    f"on this device ({parts[0].device.type}), a group's gradient depends on the other groups of its pass "
                    f"({what}): the engine takes one group at a time, as bounding.engine = 'loop' does. [engine-not-alike]"
                )


def trials(
    views: Views,
    padding: Padding,
    totals: Iterable[int] | None,
    vocabulary: int = 3,
    before: int = 0,
    sizes: Iterable[int] | None = None,
) -> Iterator[Trial]:
    """Yields passes over random records.

    Some groups, called probes, occur in several passes, each time at another position and beside other groups.

    Args:
        views: Views of any records; only their shapes and dtypes are read.
        padding: Public shapes of passes.
        totals: Number of records of each pass. ``None`` means one pass of every shape, and then further passes of the largest
            shape until there are six passes and every probe has occurred twice.
        vocabulary: Number of distinct tokens that a text may contain.
        before: Number of earlier checks in this run. It is the seed of the random records and the order of the probes, so each
            check has its own.
        sizes: Sizes of the probes that consist of independent random records; default: all sizes of groups that may share a
            pass.
    """
    generator = torch.Generator().manual_seed(before)
    probes = _probes(padding, range(2, padding.slots + 1) if sizes is None else sizes, before)
    times, least = [0] * len(probes), max(_TRIALS, len(padding.totals))
    endless = totals is None
    every = itertools.chain(padding.totals, itertools.repeat(padding.totals[-1])) if totals is None else totals
    for number, total in enumerate(every):
        # Probes seen once come first, so that they are seen twice; then unseen ones. Large probes come early: they rarely fit.
        rank, large = {1: 0, 0: 1}, [probe.size for probe in probes]
        turn = [(probe - number - before) % len(probes) for probe in range(len(probes))]
        order = sorted(range(len(probes)), key=lambda probe: (rank.get(times[probe], 2), -large[probe], turn[probe]))
        trial = _trial(number, total, probes, order, views, padding, vocabulary, generator)
        for probe in trial.probes.values():
            times[probe] += 1
        yield trial
        if endless and number + 1 >= least and min(times) >= 2:
            return


def _usual(padding: Padding) -> int:
    return max(2, min(padding.typical, padding.slots))


def _probes(padding: Padding, sizes: Iterable[int], seed: int) -> list[_Probe]:
    """Returns probes of independent noise of these sizes, and a few probes of nearly equal or equal records."""
    usual = _usual(padding)
    kinds = [(2, _NEARLY), (usual, _NEARLY), (usual, 0.0), (padding.slots, _NEARLY), *((size, 1.0) for size in sizes)]
    return [_Probe(size, apart, 1000 * seed + number) for number, (size, apart) in enumerate(kinds)]


def _trial(
    number: int,
    total: int,
    probes: list[_Probe],
    first: list[int],
    views: Views,
    padding: Padding,
    vocabulary: int,
    generator: torch.Generator,
) -> Trial:
    """Builds a pass of at most `total` records, fillers not counted.

    Probes are taken in the order of `first`, and fill three quarters of the pass at most; the first probe may be larger. Other
    groups, of random sizes, fill the rest.
    """
    chosen: list[tuple[int | None, int]] = []
    room = total
    for probe in first:
        fits = probes[probe].size <= (room - total // 4 if chosen else room)
        if len(chosen) < max(1, padding.groups - 1) and fits:
            chosen.append((probe, probes[probe].size))
            room -= probes[probe].size
    while len(chosen) < padding.groups and room >= 2:
        size = int(torch.randint(2, min(padding.slots, room) + 1, (), generator=generator))
        chosen.append((None, size))
        room -= size
    order = [chosen[place] for place in torch.randperm(len(chosen), generator=generator).tolist()]
    others = {0: 1.0, 1: _HUGE, 2: torch.nan}[number % 3]
    parts = []
    for probe, size in order:
        noise = _noise(views, size, vocabulary, generator) if probe is None else probes[probe].views(views, vocabulary)
        parts.append({n: v * others if probe is None and v.is_floating_point() else v for n, v in noise.items()})
    together = {name: torch.cat([part[name] for part in parts]) for name in views}
    places = {place: probe for place, (probe, _) in enumerate(order) if probe is not None}
    return Trial(together, [size for _, size in order], total, places)


def _noise(views: Views, records: int, vocabulary: int, generator: torch.Generator) -> Views:
    """Generates records: images of noise, texts of random tokens, and labels of a few classes."""
    noise = {}
    for name, view in views.items():
        shape = (records, *view.shape[1:])
        if view.is_floating_point():
            drawn = torch.randn(shape, generator=generator)
        else:
            numbers = (0, _CLASSES) if name == LABEL else (1, vocabulary)
            drawn = torch.randint(*numbers, shape, generator=generator)
        noise[name] = drawn.to(view)
    return noise


def same(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors are equal entry by entry.

    NaN counts as equal to NaN, because a gradient with a NaN adds nothing to a sum.
    """
    if torch.equal(one, other):
        return True
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _first_difference(run_pass: PassFunction, vocabulary: int, *passes: tuple[Trial, int]) -> str:
    """Returns a phrase that names the first operation whose results for the same group differ between two passes.

    If the rows of all operations agree, the phrase names sums over the group's records.
    """
    first, place = passes[0]
    noise = _noise(first.views, sum(first.sizes), vocabulary, torch.Generator().manual_seed(1))
    seen = []
    for trial, at in (*passes, (replace(first, views=noise), place)):
        with _RowsOfAGroup(trial.total, trial.rows(at)) as mode:
            run_pass(trial.views, trial.sizes, trial.total)
        seen.append(mode.seen)
    for (name, one), (_, other), (_, constant) in zip(*seen, strict=False):
        if one is None or other is None or one.shape != other.shape or same(one, other):
            continue
        if constant is None or not same(one, constant):  # a value that does not change with the views is a weight
            return f"the first difference is in '{name}'"
    return "the difference is in a sum over the group's records"


class _RowsOfAGroup(TorchDispatchMode):
    """Torch mode that keeps, from the result of every operation, the rows that belong to the records of one group.

    Args:
        records: Number of records of the pass, fillers included.
        rows: Index of the group's first record, and the index after the group's last record.

    Attributes:
        seen: Name of each operation, with the group's rows of its result; ``None`` instead of rows if the result has no fixed
            number of rows for each record, or is newly allocated memory without values.
    """

    def __init__(self, records: int, rows: tuple[int, int]) -> None:
        super().__init__()
        self._records, self._rows = records, rows
        self.seen: list[tuple[str, Tensor | None]] = []

    def __torch_dispatch__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Runs in place of every operation while the mode is on."""
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            self.seen.append((str(func), self._own(value) if "empty" not in str(func) else None))
        return result

    def _own(self, value: Any) -> Tensor | None:
        if not isinstance(value, Tensor) or not value.dim() or not len(value) or len(value) % self._records:
            return None
        k = len(value) // self._records
        first, end = self._rows
        return value.detach()[first * k : end * k].clone()
