"""Evaluations worded for people: names, units, the untrained beside the trained model, and which figures come first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

# The first that a run has is what its report opens with.
_HEADLINES = ("image_to_text_R@10", "text_to_image_R@10", "linear_probe_accuracy", "knn3_accuracy", "knn200_accuracy")
_WORDS = {
    "image_to_text": "Image to text",
    "text_to_image": "Text to image",
    "mean_rank": "mean rank",
    "median_rank": "median rank",
    "linear_probe_accuracy": "Linear probe accuracy",
}


@dataclass(frozen=True)
class Result:
    """One metric of a run: its last trained value beside its untrained one.

    Attributes:
        name: as in results.json.
        untrained: None where it was not measured.
        trained: None where it was not measured.
        protocol: how, for people.
        split: which records.
    """

    name: str
    untrained: float | None
    trained: float | None
    protocol: str
    split: str

    @property
    def label(self) -> str:
        """The name for people."""
        return label(self.name)

    @property
    def is_fraction(self) -> bool:
        """A share of cases, where more is better; otherwise a rank, where less is."""
        return is_fraction(self.name)

    @property
    def difference(self) -> str:
        """Trained minus untrained, in percentage points or ranks, with its sign."""
        if self.untrained is None or self.trained is None:
            return "–"
        change = self.trained - self.untrained
        text = f"{100 * change:+.1f} pts" if self.is_fraction else f"{change:+,.1f}"
        return text.replace("-", "−")

    @property
    def improved(self) -> bool | None:
        """Whether training helped; None where it made no difference or one side was not measured."""
        if self.untrained is None or self.trained is None or self.trained == self.untrained:
            return None
        return (self.trained > self.untrained) == self.is_fraction


def results_of(evaluations: list[dict[str, Any]]) -> list[Result]:
    """One `Result` for each metric, in the order in which they were first measured."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for item in evaluations:
        sides = found.setdefault(item["name"], {})
        if item["model"] not in sides or item["step"] >= sides[item["model"]]["step"]:
            sides[item["model"]] = item
    return [
        Result(
            name,
            sides["untrained"]["value"] if "untrained" in sides else None,
            sides["trained"]["value"] if "trained" in sides else None,
            next(reversed(sides.values()))["protocol"],
            next(reversed(sides.values()))["split"],
        )
        for name, sides in found.items()
    ]


def headlines(results: list[Result], limit: int) -> list[Result]:
    """The metrics that matter most, at most so many."""
    ordered = [item for first in _HEADLINES for item in results if item.name.partition("[")[0] == first]
    return (ordered or [item for item in results if item.is_fraction])[:limit]


def is_fraction(name: str) -> bool:
    """Whether a metric is a share of cases; the others are ranks."""
    return not name.endswith("_rank")


def label(name: str) -> str:
    """``knn3_accuracy[shape]`` -> ``3-NN accuracy (shape)``; an unknown name stays as it is."""
    base, _, column = name.rstrip("]").partition("[")
    base = re.sub(r"^knn(\d+)_accuracy$", r"\1-NN accuracy", base)
    for key, words in _WORDS.items():
        base = re.sub(rf"{key}(_|$)", words + r" ", base)
    return base.strip() + (f" ({column})" if column else "")


def shown(value: float | None, name: str) -> str:
    """A value with its unit: fractions in percent, ranks as numbers."""
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if is_fraction(name) else f"{value:,.1f}"
