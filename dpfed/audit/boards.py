"""Where in the noisy sums each canary shows, for every kind of method.

Many canaries are tried at once, each on a coordinate of its own, so that one step is as many experiments:

* group clipping: a group has a coordinate, and a canary that joins it turns its gradient round: 2C;
* public contrast: every record is a group, and has its coordinate: C;
* a clipped batch, and all methods that contrast the whole batch: there is one gradient, and so one canary and one coordinate.

The auditor knows every draw but whether a canary is drawn, as the proofs allow: also the group that the canary would join.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from dpfed.audit.canaries import Arrangement, CanaryModel
from dpfed.audit.under_test import UnderTest, sign_of
from dpfed.data.sampling import StepDraw, draw_step, unit_keys
from dpfed.privacy.method import Method
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness

_TRIED = 8  # steps


def arrangement_of(method: Method) -> Arrangement:
    """How the canaries of a method show."""
    return "one" if method.whole_batch else "own" if method.public_records else "group"


@dataclass(frozen=True)
class Board:
    """A mechanism with its canaries in place.

    Attributes:
        under: the mechanism.
        arrangement: of the canaries.
        shift: how far a canary moves its coordinate when it is drawn; with a sign.
    """

    under: UnderTest
    arrangement: Arrangement
    shift: float

    @classmethod
    def build(cls, under: UnderTest) -> Board:
        """Places the canaries of a mechanism."""
        plan = under.parts.plan
        arrangement = arrangement_of(plan.bounding.method)
        coordinates = {"group": under.fillers, "own": 1 + under.canaries, "one": 1}[arrangement]
        # The model of canaries looks at a whole group, and so wants an engine that shows it one.
        placed = under.with_model(CanaryModel(under.fillers, coordinates, arrangement), "loop")
        if arrangement == "one":
            return max((_measured(under, against) for against in (True, False)), key=lambda board: abs(board.shift))
        return cls(placed, arrangement, (2 if arrangement == "group" else 1) * plan.bounding.bound)

    def places(self, step: int, randomness: Randomness) -> tuple[np.ndarray, np.ndarray]:
        """Where each canary would show in a step, and whether nobody else can show there.

        Args:
            step: of training.
            randomness: the owners'.

        Returns:
            ``(m,)`` coordinates, -1 where it would show nowhere, and ``(m,)`` bool.
        """
        count = self.under.canaries
        if self.arrangement != "group":
            alone = np.ones(count, bool)
            return (np.arange(1, count + 1) if self.arrangement == "own" else np.zeros(count, int)), alone
        parts, present = self.under.parts, self.under.present(np.ones(count, bool))
        places, alone = np.full(count, -1), np.zeros(count, bool)
        certain = parts.plan.replace(batch=parts.plan.sampling.records)
        units = unit_keys(parts.store, parts.config.privacy)

        def draw(plan: PrivacyPlan, indices: np.ndarray, groups: int) -> StepDraw:
            own = None if units is None else units[indices]
            return draw_step(plan, randomness, step, indices, parts.store.keys[indices], groups, own)

        for share in self.under.shares(present):
            indices = np.asarray(share.indices)
            canary = self._numbers[indices] >= self.under.fillers
            drawn = draw(parts.plan, indices[~canary], share.groups).indices
            together = draw(certain, np.union1d(drawn, indices[canary]), share.groups)
            for group in range(len(together)):
                members = together.members(group)
                canary = self._numbers[members] >= self.under.fillers
                fillers, canaries = members[~canary], np.unique(self._numbers[members[canary]]) - self.under.fillers
                if len(fillers):
                    places[canaries] = self._numbers[fillers[self._hashes[fillers].argmax()]]
                    # A group of one has no gradient to be turned round.
                    alone[canaries] = len(fillers) >= 2 and len(canaries) == 1
        return places, alone

    @functools.cached_property
    def _seen(self) -> tuple[np.ndarray, np.ndarray]:
        parts, model = self.under.parts, self.under.model
        number, hashed = model.read(parts.views.plain(parts.read(np.arange(len(parts.store)))))
        return number.numpy().astype(int), hashed.numpy()

    @property
    def _numbers(self) -> np.ndarray:
        return self._seen[0]

    @property
    def _hashes(self) -> np.ndarray:
        return self._seen[1]


def _measured(under: UnderTest, against: bool) -> Board:
    """A board of one canary, which shows as far as it moves the sum on average."""
    placed = under.with_model(CanaryModel(under.fillers, 1, "one", against))
    randomness, moved = Randomness.fresh(), []
    with_, without = (placed.sums(placed.present(np.full(1, there)), randomness) for there in (True, False))
    for step in range(_TRIED):
        moved.append(sign_of(step) * (next(with_) - next(without)).item())
    return Board(placed, "one", max(moved, key=abs))
