"""White-box scores of canaries: how strongly the outputs of each step indicate that a canary took part.

The module also finds the coordinate of the noisy sum in which each canary shows, for every kind of method.

Many canaries are tried at once, each on a coordinate of its own, so that every canary of a step is an experiment:

* group clipping: each group has a coordinate, and a canary that joins the group reverses the group's gradient, a change of 2C,
  where C is the clip norm;
* public contrast: every record is a group with its own coordinate, in which a canary adds a gradient of norm C;
* a clipped batch, and all methods that contrast the whole batch: there is one gradient, and so one canary and one coordinate.

The auditor knows every draw except whether a canary is drawn, as the proofs allow. So it knows the group that the canary would
join.

The module also measures how far one record moves the sum: the observed difference between neighbours, for comparison with the
claimed sensitivity.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from dpfed.audit.canaries import Arrangement, CanaryModel
from dpfed.audit.leaving import SUMS, WEIGHTS
from dpfed.audit.under_test import UnderTest, sign_of
from dpfed.bounding.engines import ENGINES
from dpfed.data.sampling import StepDraw, draw_step, unit_keys
from dpfed.privacy.method import Method
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress, Silent
from dpfed.training.learner import Partition

_TRIED = 8  # number of steps in which a canary's shift is measured


def arrangement_of(method: Method) -> Arrangement:
    """Returns the arrangement of canaries for a method."""
    return "one" if method.whole_batch else "own" if method.public_records else "group"


@dataclass(frozen=True)
class Board:
    """A mechanism with its canaries in place.

    Attributes:
        under: Mechanism under test.
        arrangement: Arrangement of the canaries.
        shift: Signed distance by which a canary, if it is drawn, moves its coordinate of the sum.
    """

    under: UnderTest
    arrangement: Arrangement
    shift: float

    @classmethod
    def build(cls, under: UnderTest) -> Board:
        """Assigns a coordinate to each canary of a mechanism, and determines how far a canary moves the sum there."""
        plan = under.parts.plan
        arrangement = arrangement_of(plan.bounding.method)
        coordinates = {"group": under.fillers, "own": 1 + under.canaries, "one": 1}[arrangement]
        # The model of canaries needs all records of a group at once, and so an engine that passes whole groups.
        placed = under.with_model(CanaryModel(under.fillers, coordinates, arrangement), "loop")
        if arrangement == "one":
            return max((_measured(under, against) for against in (True, False)), key=lambda board: abs(board.shift))
        return cls(placed, arrangement, (2 if arrangement == "group" else 1) * plan.bounding.bound)

    def places(self, step: int, randomness: Randomness) -> tuple[np.ndarray, np.ndarray]:
        """Returns the coordinate in which each canary would show in a step, and whether its presence can be tested there.

        Args:
            step: Training step.
            randomness: Randomness of the workers.

        Returns:
            Coordinates, ``(m,)``, -1 for a canary that shows in no coordinate; and whether the canary's presence can be
            tested, ``(m,)`` bool: no other canary can show in the coordinate, and the group has a gradient without the canary.
        """
        count = self.under.canaries
        if self.arrangement != "group":
            alone = np.ones(count, bool)
            return (np.arange(1, count + 1) if self.arrangement == "own" else np.zeros(count, int)), alone
        parts, present = self.under.parts, self.under.present(np.ones(count, bool))
        places, alone = np.full(count, -1), np.zeros(count, bool)
        certain = parts.plan.replace(batch=parts.plan.sampling.records)
        units = unit_keys(parts.store, parts.config.privacy.unit)

        def draw(plan: PrivacyPlan, indices: np.ndarray, partition: Partition) -> StepDraw:
            drawn_units = None if units is None else units[indices]
            groups = plan.groups if partition.world_size > 1 else partition.groups
            return draw_step(plan, randomness, step, indices, parts.store.keys[indices], groups, drawn_units)

        partitions = self.under.partitions(present)
        if partitions[0].world_size > 1:  # every worker holds all records, and a group is the same whoever computes it
            partitions = partitions[:1]
        for partition in partitions:
            indices = np.asarray(partition.indices)
            canary = self._numbers[indices] >= self.under.fillers
            drawn = draw(parts.plan, indices[~canary], partition).indices
            together = draw(certain, np.union1d(drawn, indices[canary]), partition)
            for group in range(len(together)):
                members = together.members(group)
                canary = self._numbers[members] >= self.under.fillers
                fillers, canaries = members[~canary], np.unique(self._numbers[members[canary]]) - self.under.fillers
                if len(fillers):
                    places[canaries] = self._numbers[fillers[self._seen[1][fillers].argmax()]]
                    # A group with one filler has no gradient without the canary, so the canary cannot reverse it.
                    alone[canaries] = len(fillers) >= 2 and len(canaries) == 1
        return places, alone

    @functools.cached_property
    def _seen(self) -> tuple[np.ndarray, np.ndarray]:
        parts, model = self.under.parts, self.under.model
        number, hashed = model.read(parts.views.images.plain(parts.views.read(parts.store, np.arange(len(parts.store)))))
        return number.numpy().astype(int), hashed.numpy()

    @property
    def _numbers(self) -> np.ndarray:
        return self._seen[0]


def _measured(under: UnderTest, against: bool) -> Board:
    """Makes a board with one canary; its shift is the largest of `_TRIED` steps in absolute value."""
    placed = under.with_model(CanaryModel(under.fillers, 1, "one", against))
    randomness, moved = Randomness.fresh(), []
    with_, without = (placed.sums(placed.present(np.full(1, there)), randomness) for there in (True, False))
    for step in range(_TRIED):
        moved.append(sign_of(step) * (next(with_) - next(without)).item())
    return Board(placed, "one", max(moved, key=abs))


REPEATED = "noisy sums, minus their median over the steps"


@dataclass(frozen=True)
class Scores:
    """The scores of the canaries of one run.

    Attributes:
        coins: Presence of each canary, ``(m,)`` bool.
        alone: Whether a canary's presence can be tested in a step, ``(T, m)`` bool, see `Board.places`.
        channels: Scores by channel, ``(T, m)``; a higher score is stronger evidence for the canary's presence.
    """

    coins: np.ndarray
    alone: np.ndarray
    channels: dict[str, np.ndarray]

    def experiments(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the experiments: all pairs of a step and a canary whose presence can be tested in that step.

        Returns:
            Number of the canary, number of the step, and coin of each experiment, ``(n, 3)``; and its scores by channel,
            ``(n,)``.
        """
        step, canary = np.nonzero(self.alone)
        return np.stack([canary, step, self.coins[canary]], 1), {name: v[self.alone] for name, v in self.channels.items()}


def score(board: Board, coins: np.ndarray, owners: Randomness, noise: Randomness, progress: Progress | None = None) -> Scores:
    """Runs a mechanism with some of its canaries, and scores all of them.

    A score is the log-likelihood ratio of "canary present" to "canary absent", under the claimed noise and sampling rate. The
    channel ``weights`` is an exception: its score comes from the change of the model's weights at the canary's coordinate. Poor
    scores make no bound wrong: the lower bounds hold for any scores.

    Args:
        board: Mechanism with its canaries.
        coins: Presence of each canary, ``(m,)`` bool.
        owners: Randomness of the workers, for records, groups and views.
        noise: Randomness of the coordinator, for the noise.
        progress: Display of the steps; default: none.
    """
    under, plan = board.under, board.under.parts.plan
    # If a method releases noisy statistics, too, the two sums would differ in the noise of the statistics.
    known = plan.gradient_share == 1
    advance = (progress or Silent()).stage("steps", plan.steps)
    alone, taken, rest = [], [], []
    channels: dict[str, list[np.ndarray]] = {}
    without = under.sums(under.present(np.zeros_like(coins)), owners)
    for step, seen in enumerate(under.live(under.present(coins), owners, noise)):
        places, free = board.places(step, owners)
        base = next(without).numpy() if known else 0.0
        alone.append(free)
        taken.append(places)
        for name, values in seen.items():
            left = values.numpy() if name == WEIGHTS else _less(values.numpy(), base, name)
            channels.setdefault(name, []).append(sign_of(step) * left[places])
            if name == SUMS:
                rest.append(left.astype(np.float32))
        advance(step + 1)
    middle = np.median(np.stack(rest), 0)
    channels[REPEATED] = [
        sign_of(step) * (values - middle)[places] for step, (values, places) in enumerate(zip(rest, taken, strict=True))
    ]
    shows = np.stack(taken) >= 0
    scored = {}
    for name, parts in channels.items():
        moved = np.stack(parts)
        scored[name] = np.where(shows, moved if name == WEIGHTS else _log_ratio(moved, board), 0.0)
    return Scores(coins, np.stack(alone), scored)


def _less(values: np.ndarray, base: np.ndarray | float, name: str) -> np.ndarray:
    if isinstance(base, np.ndarray):
        base = base[: len(values)]  # in a sum, statistics of the groups may follow the gradients
    return values - np.abs(base) if name.endswith("_sq") else values - base


def _log_ratio(moved: np.ndarray, board: Board) -> np.ndarray:
    """Returns log(((1 - q) N(0, s^2) + q N(shift, s^2)) / N(0, s^2)) at each value of `moved`.

    It is the evidence that the canary is present. q is the sampling rate, s the standard deviation of the noise.
    """
    plan, shift = board.under.parts.plan, board.shift
    rate = min(plan.sampling.rate, 1.0)
    exponent = (moved * shift - shift**2 / 2) / plan.noise_std**2
    return exponent if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


_TAKEN_OUT = 4  # number of fillers that are removed, one after the other


def most_moved(under: UnderTest) -> float:
    """Measures the largest L2 distance between the sums of neighbours, over adversarial models, records and steps.

    Both neighbours have the same draws, as in the proofs. If a method also releases noisy statistics, its sums may differ by
    more, and the distance would mean nothing. The function then returns 0. It returns infinity if a sum is not finite.

    Args:
        under: Mechanism with a canary, in which every record is drawn in every step.
    """
    plan = under.parts.plan
    if plan.gradient_share != 1:
        return 0.0
    everyone = under.present(np.ones(under.canaries, bool))
    nobody = under.present(np.zeros(under.canaries, bool))
    cases = [(under.with_model(CanaryModel(under.fillers, 1, "one", against)), [nobody]) for against in (True, False)]
    if plan.bounding.method.picks_engine:
        # All engines are tested, as the run may use any of them.
        cases += [(under.with_model(CanaryModel(under.fillers, 1, "one"), engine), [nobody]) for engine in ENGINES]
        # A dependence on records outside a record's own group shows in the groups' hashes. The loop passes groups one by one.
        scrambled = under.with_model(CanaryModel(under.fillers, 1, "one", scrambled=True), "loop")
        rows = np.linspace(0, under.fillers - 1, _TAKEN_OUT).astype(int)
        cases.append((scrambled, [nobody, *(np.delete(everyone, row) for row in rows)]))
    most = 0.0
    for case, neighbours in cases:
        randomness = Randomness.fresh()
        whole = list(case.sums(everyone, randomness))
        for fewer in neighbours:
            moved = (a - b for a, b in zip(whole, case.sums(fewer, randomness), strict=True))
            lengths = [difference.norm().item() for difference in moved]
            # A sum that is not finite counts as an infinite distance, as `max` would drop NaN.
            most = max(most, *(length if math.isfinite(length) else math.inf for length in lengths))
    return most
