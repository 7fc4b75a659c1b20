"""Predicts a run's result from public numbers alone: records N, epsilon, noise multiplier sigma, number of held-out records.

The curves were fitted to the data sets of docs/results.md, which compares predicted with measured figures. Another data set may
be easier or harder by about ten percentage points; no public number shows by how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpfed.automatic.towers import SUGGESTED
from dpfed.config import Config
from dpfed.errors import UserError
from dpfed.models.moment_heads import FEWEST_IMAGES
from dpfed.privacy.method import method_named
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import round_up
from dpfed.runs.moment_forecast import kept_by

_AMONG = 10  # k of R@k
_OTHERWISE = 8.0  # the epsilon that a prediction is compared with
_FAR = 0.7 * _OTHERWISE  # below it, the comparison says something
_ERROR, _ERROR_OF_IMAGES = 8.0, 2.0  # points
# Without noise, heads between towers reach about a + b log10 N - c log10 C percent, and at most `_MOST`.
_WITH_RANDOM_BASIS, _WITH_PUBLIC_BASIS, _MOST = (72.0, 19.0, 34.0), (78.0, 27.0, 46.0), 95.0
# N x epsilon at which towers from random weights reach half of the possible recall on pairs, and the exponent of that curve.
_HALF_OF_PAIRS, _POWER_OF_PAIRS = 44_000.0, 1.57
# N x epsilon at which training on images begins to gain, and the gain per factor of ten, percentage points.
_NOTHING_BELOW, _GAIN = 100.0, 0.25


@dataclass(frozen=True)
class Expectation:
    """A predicted result.

    Attributes:
        figure: Name of the predicted metric, such as ``"R@10"``; ``None``: nothing is predicted.
        before: Value before training in percent; ``None``: unknown. `after` is then the gain in percentage points.
        after: Value after training in percent; ``None``: nothing is predicted.
        error: Error of `after` in percentage points; eight of ten runs reach a figure within this error of `after`. ``None``:
            nothing is predicted.
        sentence: Prediction as a sentence for the user.
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
        """Returns whether the prediction is a measurable gain: `before` is known, and `after` is at least 1 point higher."""
        return self.before is not None and self.after is not None and self.after - self.before >= 1.0

    def facts(self) -> dict[str, Any]:
        """Returns the prediction as a mapping for JSON."""
        return {"figure": self.figure, "before": self.before, "after": self.after, "error": self.error, "said": self.sentence}


def expected(config: Config, plan: PrivacyPlan, held_out: int, pretrained: str) -> Expectation:
    """Predicts the result of a run.

    Args:
        config: Configuration of the run.
        plan: Privacy plan of the run.
        held_out: Number of evaluation records.
        pretrained: Kind of pretraining, see `dpfed.automatic.towers.Towers`.
    """
    records = plan.sampling.records
    strength = records * plan.epsilon()
    closed_form = method_named(config.bounding.method).closed_form
    if not plan.private:
        return Expectation(None, None, None, None, "the result of training without noise; the run has no privacy guarantee")
    if config.model.reads_text:
        if closed_form and pretrained == "unaligned":
            return _of_moments(plan, held_out, config.bounding.options.get("basis") != "random")
        if pretrained == "aligned":
            return _of_aligned(strength, held_out, closed_form)
        return _of_pairs(strength, held_out)
    return _of_frozen_images(records) if closed_form else _of_images(strength, pretrained)


def recall_of_moments(records: int, noise_multiplier: float, held_out: int, public: bool = True) -> float:
    """Predicts the R@10, percent, of private moments of towers that were never trained together: the mean of both directions.

    Without noise, recall grows with N and falls with the number of candidates. Noise leaves a fraction of the recall above
    chance (`dpfed.runs.moment_forecast.kept_by`).

    Args:
        records: N, number of training records.
        noise_multiplier: Noise multiplier, sigma.
        held_out: Number of candidates of the retrieval.
        public: Whether the basis is computed from public features.
    """
    chance = min(100.0, 100 * _AMONG / held_out)
    of_all, of_records, of_candidates = _WITH_PUBLIC_BASIS if public else _WITH_RANDOM_BASIS
    whole = of_all + of_records * math.log10(records) - of_candidates * math.log10(max(held_out, 2 * _AMONG))
    return chance + kept_by(records, noise_multiplier, held_out, public) * (min(_MOST, max(chance, whole)) - chance)


def gain_of_images(strength: float) -> float:
    """Predicts by how much private training raises the accuracy (mean of k-NN and probe) of a procedural initialisation.

    Args:
        strength: N times epsilon.

    Returns:
        The gain, percentage points.
    """
    return max(0.0, _GAIN * math.log10(max(strength, 1.0) / _NOTHING_BELOW))


def recall_of_pairs(strength: float, held_out: int) -> float:
    """Predicts the R@10, percent, of two small towers trained on simple captioned pictures from random weights.

    Args:
        strength: N times epsilon.
        held_out: Number of candidates of the retrieval.
    """
    chance = min(100.0, 100 * _AMONG / held_out)
    odds = (strength / _HALF_OF_PAIRS) ** _POWER_OF_PAIRS
    return chance + (_MOST - chance) * odds / (1 + odds)


def _of_moments(plan: PrivacyPlan, held_out: int, public: bool) -> Expectation:
    if held_out <= _AMONG:
        return _of_few_held_out(held_out)
    records, epsilon = plan.sampling.records, plan.epsilon()
    before = 100 * _AMONG / held_out
    after = recall_of_moments(records, plan.noise.multiplier, held_out, public)
    if after - before < 1:
        need = "more records would help"
        if epsilon < _FAR:
            need = f"about {_rounded(records * _OTHERWISE / epsilon)} records, or epsilon {_OTHERWISE:g}, would help"
        said = f"no gain: with {records:,} records at epsilon {round_up(epsilon)}, noise hides their signal; {need}"
        return Expectation("R@10", before, before, _ERROR, said)
    said = f"R@10 from {before:.0f} to about {after:.0f} %, among {held_out:,} held-out records, ± {_ERROR:.0f}"
    if (other := _at(plan, _OTHERWISE)) is not None and epsilon < _FAR:
        better = recall_of_moments(records, other.noise.multiplier, held_out, public)
        said = f"{said}; at epsilon {_OTHERWISE:g} about {better:.0f} %"
    return Expectation("R@10", before, after, _ERROR, said)


def _of_few_held_out(held_out: int) -> Expectation:
    said = (
        f"no gain can be measured: R@{_AMONG} among {held_out} held-out record{'s' * (held_out > 1)} is 100 % for every model; "
        "hold out more"
    )
    return Expectation("R@10", 100.0, 100.0, _ERROR, said)


def _of_aligned(strength: float, held_out: int, closed_form: bool) -> Expectation:
    if closed_form:
        said = "the public model's figures, and a few points more if your captions differ from its training data"
    else:
        said = "a gain over the public model, and a large one if your captions differ from its training data"
    return Expectation(None, None, None, None, said)


def _of_pairs(strength: float, held_out: int) -> Expectation:
    if held_out <= _AMONG:
        return _of_few_held_out(held_out)
    before, after = 100 * _AMONG / held_out, recall_of_pairs(strength, held_out)
    if after - before < 1:
        said = f"no gain: so few pairs are not enough at this epsilon; start from public weights (--model {SUGGESTED})"
        return Expectation("R@10", before, before, _ERROR, said)
    said = (
        f"R@10 from {before:.0f} to about {after:.0f} %, if your pictures and captions are as simple as the "
        f"quickstart's, and less otherwise; pretrained towers (--model {SUGGESTED}) usually reach more"
    )
    return Expectation("R@10", before, after, _ERROR, said)


def _of_frozen_images(records: int) -> Expectation:
    gain = 0.0 if records < FEWEST_IMAGES else 1.0
    said = "the public tower's figures, and about a point more" if gain else "no gain: the public tower's figures"
    return Expectation("k-NN and linear probe", None, gain, _ERROR_OF_IMAGES, said)


def _of_images(strength: float, pretrained: str) -> Expectation:
    gain = gain_of_images(strength)
    about = f"about {gain:.0f} point{'s' if gain >= 1.5 else ''}" if gain >= 1 else "less than 1 point"
    said = f"{about} more accuracy than with the initial weights"
    if gain < 0.5:
        said = f"no measurable gain over the initial weights, at N x epsilon = {strength:,.0f}"
    if pretrained == "none":
        said = f"{said}; a pretrained tower (--model {SUGGESTED}) starts with far better features"
    return Expectation("k-NN and linear probe", None, gain, _ERROR_OF_IMAGES, said)


def _at(plan: PrivacyPlan, epsilon: float) -> PrivacyPlan | None:
    """Calibrates the plan to another epsilon; ``None``: no noise multiplier gives that epsilon."""
    try:
        return plan.replace(target_epsilon=epsilon).calibrated()
    except UserError:
        return None


def _rounded(count: float) -> str:
    """Formats a count, rounded to two digits."""
    scale = 10 ** max(0, len(str(int(count))) - 2)
    return f"{round(count / scale) * scale:,}"
