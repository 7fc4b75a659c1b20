"""What a run will bring, from public numbers alone: N, epsilon, sigma and how many records are held out.

The curves were fitted to the sets that docs/automatic.md names; it has predicted beside reached figures. A data set of other
pictures may be easier or harder by some ten points, and no public number tells that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpfed.config import Config
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.privacy.method import method_named
from dpfed.privacy.plan import PrivacyPlan
from dpfed.runs.moment_forecast import kept_by

_AMONG = 10  # R@10
_OTHERWISE = 8.0  # an epsilon to compare with


@dataclass(frozen=True)
class Expectation:
    """What is expected.

    Attributes:
        figure: that is predicted, such as ``"R@10"``; ``None``: no figure is.
        before: of the model before training, percent.
        after: of the trained model, percent.
        error: of `after`, percentage points; eight of ten runs end within it.
        sentence: for the user.
    """

    figure: str | None
    before: float | None
    after: float | None
    error: float | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence

    @property
    def gains(self) -> bool:
        """Whether the run is expected to gain anything that can be measured."""
        return self.before is not None and self.after is not None and self.after - self.before >= 1.0

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {"figure": self.figure, "before": self.before, "after": self.after, "error": self.error, "said": self.sentence}


def expected(config: Config, plan: PrivacyPlan, store: RecordStore, pretrained: str) -> Expectation:
    """What a run will bring.

    Args:
        config: of the run.
        plan: of the run.
        store: its records; only their number counts.
        pretrained: see `dpfed.automatic.towers.Towers`.
    """
    split = config.evaluation.split
    held_out = store.count(split) if split != "none" else max(1, plan.sampling.records // 6)
    closed_form = method_named(config.bounding.method).closed_form
    if config.model.reads_text:
        if closed_form and pretrained == "unaligned":
            return _of_moments(plan, held_out)
        if closed_form or pretrained == "aligned":
            return _of_aligned(plan)
        return _of_pairs(plan, held_out)
    return _of_frozen_images(plan) if closed_form else _of_images(plan, config)


def _of_moments(plan: PrivacyPlan, held_out: int) -> Expectation:
    before = min(100.0, 100 * _AMONG / held_out)
    after = _recall_of_moments(plan, held_out)
    said = f"R@10 from {before:.0f} to about {after:.0f} %, among {held_out:,} held-out records, give or take 8"
    if (other := _at(plan, _OTHERWISE)) is not None and plan.epsilon() < 0.7 * _OTHERWISE:
        said = f"{said}; at epsilon {_OTHERWISE:g} about {_recall_of_moments(other, held_out):.0f} %"
    if after - before < 1:
        said = f"nothing: {plan.sampling.records:,} records at epsilon {plan.epsilon():.3g} leave the public towers as they are"
    return Expectation("R@10", before, after, 8.0, said)


def _recall_of_moments(plan: PrivacyPlan, held_out: int) -> float:
    """R@10 in percent. Without noise it grows with N and falls with the number of candidates; noise leaves a part of it."""
    records, chance = plan.sampling.records, min(100.0, 100 * _AMONG / held_out)
    whole = 51 + 27 * math.log10(records) - 34 * math.log10(max(held_out, 20))
    whole = min(95.0, max(chance, whole))
    return chance + kept_by(records, plan.noise.multiplier, held_out) * (whole - chance)


def _of_aligned(plan: PrivacyPlan) -> Expectation:
    return Expectation(
        None,
        None,
        None,
        None,
        "the public model's figures or better; how much depends on how far your captions are from its own",
    )


def _of_pairs(plan: PrivacyPlan, held_out: int) -> Expectation:
    return Expectation("R@10", None, None, None, "")


def _of_frozen_images(plan: PrivacyPlan) -> Expectation:
    gain = 0.0 if plan.sampling.records < 2000 else 1.0
    said = (
        "the public tower's own figures, and about a point more"
        if gain
        else "the public tower's own figures: so few images add nothing"
    )
    return Expectation("k-NN", None, gain, 1.5, said)


def _of_images(plan: PrivacyPlan, config: Config) -> Expectation:
    return Expectation(None, None, None, None, "")


def _at(plan: PrivacyPlan, epsilon: float) -> PrivacyPlan | None:
    """The same plan with another epsilon; ``None``: there is no such noise."""
    try:
        return plan.replace(target_epsilon=epsilon).calibrated()
    except UserError:
        return None
