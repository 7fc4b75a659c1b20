"""Puts evaluations into words: names, units, figures before and after training, and the choice of headline figures."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dpfed.evaluation.intervals import apart

# A report opens with the first of these that the run has.
_HEADLINES = ("image_to_text_R@10", "text_to_image_R@10", "linear_probe_accuracy", "knn3_accuracy", "knn200_accuracy")
Interval = tuple[float, float]


class Named(Protocol):
    """Anything with the name of a metric, such as ``knn3_accuracy``."""

    @property
    def name(self) -> str: ...  # noqa: D102


Figure = TypeVar("Figure", bound=Named)
_WORDS = {
    "image_to_text": "Image to text",
    "text_to_image": "Text to image",
    "linear_probe_accuracy": "Linear probe accuracy",
    "zero_shot_accuracy": "Zero-shot accuracy",
    "zero_shot_top5_accuracy": "Zero-shot top-5 accuracy",
}


@dataclass(frozen=True)
class Result:
    """One metric of a run: its last value for the trained model, and its value for the untrained model.

    Attributes:
        name: Name, as in results.json.
        untrained: Value of the untrained model; ``None``: it was not measured.
        trained: Value of the trained model; ``None``: it was not measured.
        protocol: Description of the measurement.
        split: Split of the records.
        untrained_interval: 95% interval over the draw of held-out records; ``None``: not known.
        trained_interval: 95% interval of the trained value; ``None``: not known.
        change: 95% interval of trained minus untrained, on the same records. Where the effect of noise alone was measured, the
            interval also covers that effect. ``None``: not known.
        chance: Value that guessing gives; ``None``: not known.
    """

    name: str
    untrained: float | None
    trained: float | None
    protocol: str
    split: str
    untrained_interval: Interval | None = None
    trained_interval: Interval | None = None
    change: Interval | None = None
    chance: float | None = None

    @property
    def label(self) -> str:
        """The metric's name for readers, such as ``3-NN accuracy (shape)``."""
        return label(self.name)

    @property
    def difference(self) -> str:
        """The difference trained minus untrained in percentage points, with its sign and error; a dash without both values."""
        if self.untrained is None or self.trained is None:
            return "–"
        return difference(self.trained - self.untrained, self.change)

    @property
    def improved(self) -> bool | None:
        """Whether training helped; ``None`` if the difference is within its error, or a value or its error is not known."""
        if self.untrained is None or self.trained is None or self.change is None or within(self.change):
            return None
        return self.trained > self.untrained


def results_of(evaluations: list[dict[str, Any]]) -> list[Result]:
    """Returns one `Result` for each metric, in the order in which the metrics were first measured."""
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for item in evaluations:
        sides = by_name.setdefault(item["name"], {})
        if item["model"] not in sides or item["step"] >= sides[item["model"]]["step"]:
            sides[item["model"]] = item
    return [
        Result(
            name,
            sides["untrained"]["value"] if "untrained" in sides else None,
            sides["trained"]["value"] if "trained" in sides else None,
            next(reversed(sides.values()))["protocol"],
            next(reversed(sides.values()))["split"],
            _interval(sides.get("untrained"), "interval"),
            _interval(sides.get("trained"), "interval"),
            _interval(sides.get("trained"), "change"),
            next(reversed(sides.values())).get("chance"),
        )
        for name, sides in by_name.items()
    ]


def headlines(results: list[Result], limit: int) -> list[Result]:
    """Returns the most important metrics, at most `limit`; see `most_telling`."""
    return most_telling(results, limit)


def most_telling(figures: list[Figure], limit: int) -> list[Figure]:
    """Returns the most important of the given figures, at most `limit`; the first ones if no figure is a known headline."""
    ordered = [item for first in _HEADLINES for item in figures if item.name.partition("[")[0] == first]
    return (ordered or figures)[:limit]


def label(name: str) -> str:
    """Returns a metric's name in words: ``knn3_accuracy[shape]`` -> ``3-NN accuracy (shape)``; unknown names stay unchanged."""
    base, _, column = name.rstrip("]").partition("[")
    base = re.sub(r"^knn(\d+)_accuracy$", r"\1-NN accuracy", base)
    for key, words in _WORDS.items():
        base = re.sub(rf"{key}(_|$)", words + r" ", base)
    return base.strip() + (f" ({column})" if column else "")


def shown(value: float | None, interval: Interval | None = None) -> str:
    """Returns a fraction in percent, with its error if the interval is known; a dash for ``None``."""
    if value is None:
        return "–"
    text = f"{100 * value:.1f} %"
    return text if interval is None else f"{text} ± {_off(value, interval)}"


def difference(change: float, interval: Interval | None, digits: int = 1) -> str:
    """Formats a change of a fraction, such as 0.012, in percentage points: ``+1.2 pts``.

    With an interval (of fractions, too), the text has the error, and says ``within error`` if the interval contains 0.
    """
    text = f"{100 * change:+.{digits}f}".replace("-", "−")
    if interval is None:
        return f"{text} pts"
    words = ", within error" if within(interval) else ""
    return f"{text} ± {_off(change, interval, digits)} pts{words}"


def within(change: Interval) -> bool:
    """Returns whether a change may be due to chance: whether its interval contains 0."""
    return change[0] <= 0 <= change[1]


def tied(first: Result, other: Result) -> bool:
    """Returns whether the trained figures of two runs differ by no more than chance may cause.

    If an interval is not known, the figures must be equal.
    """
    if first.trained is None or other.trained is None or first.trained_interval is None or other.trained_interval is None:
        return first.trained == other.trained
    # Outcomes for single queries of other runs are not known, so the two figures are treated as independent.
    return within(apart(first.trained, first.trained_interval, other.trained, other.trained_interval))


def _off(value: float, interval: Interval, digits: int = 1) -> str:
    """Formats the larger distance from the value to an end of the interval in percent, rounded up."""
    scale = 10 ** (2 + digits)
    most = max(interval[1] - value, value - interval[0], 0.0)
    return f"{math.ceil(round(most * scale, 9)) / 10**digits:,.{digits}f}"


def _interval(item: dict[str, Any] | None, key: str) -> Interval | None:
    ends = (item or {}).get(key)
    return None if ends is None else (float(ends[0]), float(ends[1]))
