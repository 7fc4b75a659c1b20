"""How far one record moves the sum: the observed difference between neighbours, beside the sensitivity that is claimed."""

from __future__ import annotations

import math

import numpy as np

from dpfed.audit.canaries import CanaryModel
from dpfed.audit.under_test import UnderTest
from dpfed.bounding.engines import ENGINES
from dpfed.privacy.randomness import Randomness

_TAKEN_OUT = 4  # records, one after the other


def most_moved(under: UnderTest) -> float:
    """The largest L2 distance between the sums of neighbours, over adversarial models, records and steps.

    The draws are the same for both, as the proofs have it. Where a method releases noisy statistics besides, its sums may
    differ by more, and the distance says nothing: then it is 0.

    Args:
        under: a mechanism with a canary, in which every record is drawn in every step.
    """
    plan = under.parts.plan
    if plan.bounding.method.gradient_share(plan) != 1:
        return 0.0
    everyone = under.present(np.ones(under.canaries, bool))
    nobody = under.present(np.zeros(under.canaries, bool))
    cases = [(under.with_model(CanaryModel(under.fillers, 1, "one", against)), [nobody]) for against in (True, False)]
    if plan.bounding.method.picks_engine:
        # Whichever engine the run will have.
        cases += [(under.with_model(CanaryModel(under.fillers, 1, "one"), engine), [nobody]) for engine in ENGINES]
        # Whatever depends on others than a record's own group shows in the hash of all groups. One group at a time.
        scrambled = under.with_model(CanaryModel(under.fillers, 1, "one", scrambled=True), "loop")
        rows = np.linspace(0, under.fillers - 1, _TAKEN_OUT).astype(int)
        cases.append((scrambled, [nobody, *(np.delete(everyone, row) for row in rows)]))
    most = 0.0
    for case, neighbours in cases:
        randomness = Randomness.fresh()
        whole = list(case.sums(everyone, randomness))
        for fewer in neighbours:
            moved = (a - b for a, b in zip(whole, case.sums(fewer, randomness), strict=True))
            most = max(most, *(_finite(difference.norm().item()) for difference in moved))
    return most


def _finite(distance: float) -> float:
    """A distance; infinity where a sum is not finite: it may be any, and `max` would drop what is no number."""
    return distance if math.isfinite(distance) else math.inf
