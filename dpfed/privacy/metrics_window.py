"""The figures of a window of steps, as they were released: what a curve of private training is made of."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MetricsWindow:
    """All follow from the noisy sums of some steps; each may be off by its error in 95 % of cases.

    Attributes:
        first: step, counted from 1.
        last: step.
        released: how many of these steps were released; the others were discarded, and tell nothing.
        loss: mean per record.
        loss_error: of it.
        clip_rate: share of the groups whose gradient was clipped; ``None``: every gradient is normalised.
        norm: the threshold that follows the quantile: its geometric mean over the steps.
        quantile: that it follows.
        below: share of the groups whose norm was below it.
        share_error: of `below` and of `clip_rate`.
    """

    first: int
    last: int
    released: int
    loss: float
    loss_error: float
    clip_rate: float | None
    norm: float
    quantile: float
    below: float
    share_error: float

    @classmethod
    def read(cls, figures: Any) -> MetricsWindow:
        """The window of a line of metrics.jsonl.

        Raises:
            ValueError: if it is none.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(figures, dict) or figures.keys() != names:
            raise ValueError(f"expected {', '.join(sorted(names))}")
        whole = {"first", "last", "released"}
        for name, value in figures.items():
            kind: Any = int if name in whole else (int, float)
            right = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
            if not right and not (name == "clip_rate" and value is None):
                raise ValueError(f"'{name}' is {value!r}")
        return cls(**figures)

    def figures(self) -> dict[str, float | None]:
        """As a line of metrics.jsonl keeps it."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        said = f"to step {self.last}: loss {max(0.0, self.loss):.3g} ± {self.loss_error:.2g}"
        if self.clip_rate is not None:
            said += f", {percent(self.clip_rate)} ± {percent(self.share_error)} of the groups clipped"
        return f"{said}, {percent(self.quantile)} of the gradients' norms below about {self.norm:.3g}"


def percent(share: float) -> str:
    """A share of cases, which noise may have moved out of its range."""
    return f"{100 * min(max(share, 0.0), 1.0):.0f} %"
