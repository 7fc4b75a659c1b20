"""A callback looks on while a model trains.

Of a step it sees what is released and charged, and nothing else: the summary follows from the noisy sum and from the plan. The
figures of an evaluation are exact, and no epsilon covers them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfed.evaluation.measured import Evaluation
    from dpfed.privacy.metrics_window import MetricsWindow

_REPORTS = 50  # of a run, about: so often epsilon is computed, and metrics.jsonl gets a line


@dataclass(frozen=True)
class StepSummary:
    """What a step may tell: all of it follows from the noisy sum or from the plan.

    Attributes:
        step: 0 .. T - 1.
        steps: T.
        learning_rate: of this step.
        noisy_gradient_norm: L2; ``None``: the step was discarded, and the model stayed as it was.
        window: the private metrics of the window that ends with this step, where the plan releases any.
        spent: computes `epsilon`.
    """

    step: int
    steps: int
    learning_rate: float
    noisy_gradient_norm: float | None
    window: MetricsWindow | None = None
    spent: Callable[[int], float | None] = field(default=lambda done: None, repr=False, compare=False)

    @property
    def done(self) -> int:
        """Steps finished."""
        return self.step + 1

    @functools.cached_property
    def epsilon(self) -> float | None:
        """What all steps so far have spent together; ``None`` where no guarantee holds. It is computed when it is asked for."""
        return self.spent(self.done)

    @property
    def is_reported(self) -> bool:
        """Whether metrics.jsonl gets a line for this step: about 50 of a run, the last one, and each end of a window do."""
        often = self.done % max(1, self.steps // _REPORTS) == 0
        return often or self.done == self.steps or self.window is not None

    def metrics(self) -> dict[str, Any]:
        """What metrics.jsonl keeps beside step and epsilon."""
        metrics: dict[str, Any] = {"learning_rate": self.learning_rate, "noisy_gradient_norm": self.noisy_gradient_norm}
        return metrics if self.window is None else {**metrics, "phase": self.window.figures()}

    def scalars(self) -> dict[str, float]:
        """All numbers of this step, by names that boards take, such as ``training/epsilon``."""
        found = {"epsilon": self.epsilon, "learning_rate": self.learning_rate, "noisy_gradient_norm": self.noisy_gradient_norm}
        scalars = {f"training/{name}": value for name, value in found.items() if value is not None}
        for name in ("loss", "clip_rate", "norm"):
            value = None if self.window is None else getattr(self.window, name)
            scalars |= {} if value is None else {f"progress/{name}": value}
        return scalars

    def sendable(self) -> StepSummary:
        """The same with epsilon computed, so that another process can have it."""
        epsilon = self.epsilon
        return replace(self, spent=functools.partial(_given, epsilon))


def _given(epsilon: float | None, done: int) -> float | None:
    return epsilon


@dataclass(frozen=True)
class RunInfo:
    """Which run a callback looks at. It never leaves the machine by itself.

    Attributes:
        name: of the run.
        done: steps that are over; 0 for a new run.
        folder: of the run; ``None``: the training has none.
        identity: tells the run from any other, and stays the same when it is resumed; empty: not known.
        config: every key that has an effect, such as ``privacy.epsilon``, with its value. Some say where private records lie.
    """

    name: str
    done: int
    folder: Path | None = None
    identity: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


class Callback:
    """Looks on while a model trains. Subclass it, and override what you need.

    What `on_step` gets is on disk and charged by then. A method that raises ends the run, which can be resumed. A resumed run
    shows the steps of its last commit again, with the same numbers: callbacks may not have seen all of them.

    Attributes:
        every: `on_step` is called after so many steps, and after the last one; ``None``: as often as metrics.jsonl gets a line
            (`StepSummary.is_reported`).
        waits: whether `on_step` may be called some steps later, with the same summaries in the same order. Then the model has
            moved on. True for those that look at the summary alone: they do not make a run write its state to the disk.
    """

    every: int | None = None
    waits: bool = False

    def is_due(self, step: StepSummary) -> bool:
        """Whether `on_step` is to be called after a step."""
        if self.every is None:
            return step.is_reported
        return step.done % self.every == 0 or step.done == step.steps

    def on_run(self, run: RunInfo) -> None:
        """A run begins or resumes: nothing is measured or spent yet. `dpfed.training.steps.Steps` does not call this."""

    def on_begin(self, done: int) -> None:
        """Steps begin, or go on after an interruption.

        Args:
            done: steps that are over. What a callback kept of later ones comes again.
        """

    def on_step(self, step: StepSummary) -> None:
        """A step was released and charged, and the model has been updated."""

    def on_evaluation(self, figures: list[Evaluation]) -> None:
        """The model was measured. Figures are exact: no epsilon covers them."""

    def on_end(self) -> None:
        """A run is over, and all of its files are written. `dpfed.training.steps.Steps` by itself does not call this."""

    def on_stop(self) -> None:
        """A run was interrupted or failed; it may be resumed. `dpfed.training.steps.Steps` by itself does not call this."""
