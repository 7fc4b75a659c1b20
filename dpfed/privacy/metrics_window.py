"""Defines the figures that a private run releases over a window of steps; each window is one point of a training curve."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MetricsWindow:
    """Figures computed from the noisy sums of some steps.

    For some figures an error is given: in 95 % of cases the exact figure differs from the released one by at most this error.

    Attributes:
        first: First step, counted from 1.
        last: Last step, counted from 1.
        released: Number of these steps that were released; the others were discarded, and reveal nothing.
        loss: Mean loss per record.
        loss_error: Error of `loss`.
        clip_rate: Fraction of the groups whose gradient was clipped; ``None`` if every gradient is normalised instead.
        norm: Geometric mean, over the steps, of the threshold that follows a quantile of the gradients' norms.
        quantile: Quantile that the threshold follows.
        below: Fraction of the groups whose gradient's norm was below the threshold.
        share_error: Error of `below` and of `clip_rate`.
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
        """Returns the window of a parsed line of metrics.jsonl.

        Raises:
            ValueError: If the line is not a window.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(figures, dict) or figures.keys() != names:
            raise ValueError(f"expected an object with the keys {', '.join(sorted(names))}")
        whole = {"first", "last", "released"}
        for name, value in figures.items():
            kind: Any = int if name in whole else (int, float)
            right = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
            if not right and not (name == "clip_rate" and value is None):
                raise ValueError(f"'{name}' must be a finite {'whole ' * (name in whole)}number, got {value!r}")
        return cls(**figures)

    def figures(self) -> dict[str, float | None]:
        """Returns the window as a line of metrics.jsonl."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        said = f"to step {self.last}: loss {max(0.0, self.loss):.3g} ± {self.loss_error:.2g}"
        if self.clip_rate is not None:
            said += f", {percent(self.clip_rate)} ± {percent(self.share_error)} of the groups clipped"
        return f"{said}, {percent(self.quantile)} of the gradients' norms below about {self.norm:.3g}"


def percent(share: float) -> str:
    """Formats a fraction as a whole percentage from 0 to 100 %; noise may have moved the fraction out of this range."""
    return f"{100 * min(max(share, 0.0), 1.0):.0f} %"
