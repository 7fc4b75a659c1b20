"""One measured figure of a model, with its error bars."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # `intervals` would load scipy, which reading a run does not need
    from dpfed.evaluation.intervals import Outcomes

Which = Literal["trained", "untrained"]
_NUMBER = (int, float)
_FACTS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "value": _NUMBER,
    "model": str,
    "split": str,
    "protocol": str,
    "step": int,
}


def wrong_fact(facts: object) -> str | None:
    """Returns the first key of a JSON object (`Evaluation.facts`) whose value is missing or wrong; ``None``: no such key.

    ``queries`` is not checked. ``interval``, ``change`` and ``chance`` may be missing. All values that are checked must have
    the right type, and ``value`` and ``chance`` must lie in [0, 1]. If `facts` is not an object, the result is ``"name"``.
    """
    if not isinstance(facts, dict):
        return "name"
    for key, kind in _FACTS.items():
        if not isinstance(facts.get(key), kind) or isinstance(facts[key], bool):
            return key
    if not 0 <= facts["value"] <= 1:
        return "value"
    for key in ("interval", "change"):
        ends = facts.get(key, [0, 0])
        if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, _NUMBER) for end in ends):
            return key
    guessed = facts.get("chance", 0)
    return None if isinstance(guessed, _NUMBER) and 0 <= guessed <= 1 else "chance"


@dataclass(frozen=True)
class Evaluation:
    """One measured figure.

    Attributes:
        name: Metric, such as ``text_to_image_R@10`` or ``knn3_accuracy[shape]``.
        value: Fraction in [0, 1].
        model: Measured model, ``trained`` or ``untrained``.
        split: Split of the measured records.
        protocol: How the figure was measured, as a phrase for the reader of a report.
        step: Number of training steps that the model had seen.
        queries: Number of held-out images (or captions) of which the figure is a fraction.
        interval: 95% interval over the draw of held-out records (`dpfed.evaluation.intervals`); ``None``: not known.
        change: 95% interval of this figure minus the untrained model's. It allows for the draw of held-out records and, if
            models of noise alone were measured, for the spread of their figures; ``None``: not compared.
        chance: Expected value of the figure for a model that guesses; ``None``: not known.
        outcomes: Outcome of each query. Outcomes are never written to a file: they are exact, and reveal more than the figure
            does.
    """

    name: str
    value: float
    model: Which
    split: str
    protocol: str
    step: int
    queries: int | None = None
    interval: tuple[float, float] | None = None
    change: tuple[float, float] | None = None
    chance: float | None = None
    outcomes: Outcomes | None = field(default=None, compare=False, repr=False)

    def facts(self) -> dict[str, Any]:
        """Returns the fields that are known, without the outcomes, as a JSON object."""
        fields = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name != "outcomes"}
        return {name: value for name, value in fields.items() if value is not None}

    def compared(self, before: list[Evaluation], noise: Sequence[list[Evaluation]] = ()) -> Evaluation:
        """Returns this figure with its change from the untrained model's figure of the same name, split and protocol.

        If there is no such figure, or the outcomes of either are not known, this figure is returned unchanged.

        Args:
            before: Figures of the untrained model.
            noise: Figures of models whose weights noise alone may have produced, one list for each model; none, or at least two
                lists.

        Raises:
            ValueError: If the two figures are on different queries, or `noise` has only one figure of this kind.
        """
        for other in filter(self._alike, before):
            if self.outcomes is not None and other.outcomes is not None:
                draws = [figure.value for figures in noise for figure in filter(self._alike, figures)]
                return dataclasses.replace(self, change=self.outcomes.change_from(other.outcomes, draws))
        return self

    def _alike(self, other: Evaluation) -> bool:
        return (other.name, other.split, other.protocol) == (self.name, self.split, self.protocol)
