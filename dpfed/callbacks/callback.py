"""Callbacks, which observe a training.

A callback receives summaries of steps that were released and charged. A summary follows from the noisy sum and the plan. A
callback also receives the run's name, folder and configuration, and the figures of evaluations, which are exact: no epsilon
covers these figures.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.errors import UserError

if TYPE_CHECKING:
    from dpfed.evaluation.measured import Evaluation
    from dpfed.privacy.metrics_window import MetricsWindow

_REPORTS = 50  # approximate number of reports in a run: epsilon is computed, and metrics.jsonl gets a line


@dataclass(frozen=True)
class StepSummary:
    """The public summary of a step. All of it follows from the noisy sum or from the plan.

    Attributes:
        step: Number of the step, 0 .. T - 1.
        steps: Number T of steps of the run.
        learning_rate: Learning rate of this step.
        noisy_gradient_norm: L2 norm of the noisy gradient; ``None``: the step was discarded, and the model is unchanged.
        window: Private metrics of the window of steps that ends with this step; ``None``: no window ends here.
        spent: Function that computes `epsilon` from the number of finished steps.
    """

    step: int
    steps: int
    learning_rate: float
    noisy_gradient_norm: float | None
    window: MetricsWindow | None = None
    spent: Callable[[int], float | None] = field(default=lambda done: None, repr=False, compare=False)

    @property
    def done(self) -> int:
        """Number of finished steps."""
        return self.step + 1

    @functools.cached_property
    def epsilon(self) -> float | None:
        """Epsilon of all steps so far together; ``None`` for a training without noise, or with a method that is not sound.

        It is computed on first access. A run with a fixed seed has a number here, although no guarantee holds for it.
        """
        return self.spent(self.done)

    @property
    def is_reported(self) -> bool:
        """Whether metrics.jsonl gets a line for this step.

        The file gets a line every max(1, T // 50) steps, after the last step, and at the end of each window.
        """
        often = self.done % max(1, self.steps // _REPORTS) == 0
        return often or self.done == self.steps or self.window is not None

    def metrics(self) -> dict[str, Any]:
        """Returns the fields of the step's line in metrics.jsonl, except step and epsilon."""
        metrics: dict[str, Any] = {"learning_rate": self.learning_rate, "noisy_gradient_norm": self.noisy_gradient_norm}
        return metrics if self.window is None else {**metrics, "phase": self.window.figures()}

    def scalars(self) -> dict[str, float]:
        """Returns all numbers of this step, by the names that trackers use, such as ``training/epsilon``."""
        numbers = {
            "epsilon": self.epsilon,
            "learning_rate": self.learning_rate,
            "noisy_gradient_norm": self.noisy_gradient_norm,
        }
        scalars = {f"training/{name}": value for name, value in numbers.items() if value is not None}
        for name in ("loss", "clip_rate", "norm"):
            value = None if self.window is None else getattr(self.window, name)
            scalars |= {} if value is None else {f"progress/{name}": value}
        return scalars

    def sendable(self) -> StepSummary:
        """Returns a copy whose epsilon is already computed, so that it can be pickled for another process."""
        epsilon = self.epsilon
        return replace(self, spent=functools.partial(_given, epsilon))


def _given(epsilon: float | None, done: int) -> float | None:
    return epsilon


@dataclass(frozen=True)
class RunInfo:
    """The run that a callback observes.

    dpfed's trackers send to their server the name, the identity, and those keys of the configuration that
    `dpfed.callbacks.tracker.sendable` lets through. It drops paths, for example, and the seed.

    Attributes:
        name: Name of the run.
        done: Number of finished steps that callbacks have certainly seen; 0 for a new run.
        folder: Folder of the run; ``None``: the training has none.
        identity: Unique identifier of the run, which stays the same when the run is resumed; empty: not known.
        config: Values of all keys that have an effect, such as ``privacy.epsilon``. Some of them are paths of private records.
    """

    name: str
    done: int
    folder: Path | None = None
    identity: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


class Callback:
    """An observer of a training run. Subclass it, and override the methods that you need.

    A step is on disk and charged before `on_step` receives it. If `on_run`, `on_begin`, `on_step` or `on_evaluation` raises an
    exception, the run ends, and can be resumed. One write to the ledger may charge several steps, and callbacks may not have
    seen all of them when the run ends. So a resumed run shows the steps of its last write again, with the same numbers.

    Attributes:
        every: Number of steps between calls of `on_step`, at least 1; `on_step` is also called after the last step. ``None``:
            `on_step` is called whenever metrics.jsonl gets a line (`StepSummary.is_reported`).
        waits: Whether `on_step` may be called some steps later, with the same summaries in the same order, when the model has
            already changed. Set this if the callback reads only the summary: the run then need not write its state to disk for
            each call.
    """

    every: int | None = None
    waits: bool = False

    def is_due(self, step: StepSummary) -> bool:
        """Returns whether `on_step` is called after a step."""
        if self.every is None:
            return step.is_reported
        return step.done % self.every == 0 or step.done == step.steps

    def on_run(self, run: RunInfo) -> None:
        """Called when a run begins or resumes, before it measures or spends.

        A training without a run (`dpfed.training.steps.Steps` alone) does not call this method.
        """

    def on_begin(self, done: int) -> None:
        """Called when the steps begin, or continue after an interruption.

        Args:
            done: Number of finished steps that callbacks have certainly seen. All later steps are shown, even those that were
                shown before the interruption.
        """

    def on_step(self, step: StepSummary) -> None:
        """Called after a step was released and charged, and the model was updated."""

    def on_evaluation(self, figures: list[Evaluation]) -> None:
        """Called after the model was measured.

        Args:
            figures: Figures, which are exact: no epsilon covers them. The list is empty if the evaluation has no tasks.
        """

    def on_end(self) -> None:
        """Called when a run is over and all its files are written. The run stays finished if this method raises an exception.

        The other callbacks are called all the same; the exception is raised after that.

        A training without a run does not call this method; see `on_run`.
        """

    def on_stop(self) -> None:
        """Called when a run was interrupted or failed; the run may be resumed. Exceptions of this method are suppressed.

        A training without a run does not call this method; see `on_run`.
        """


def listed(given: Any) -> list[Callback]:
    """Returns the callbacks that the user gives, as a list; a single callback needs no list.

    Raises:
        UserError: If something other than callbacks is given; the message describes it without its contents.
    """
    several = not isinstance(given, Callback | str) and isinstance(given, Iterable)
    callbacks = list(given) if several else [given]
    for callback in callbacks:
        if not isinstance(callback, Callback):
            from dpfed.data.items.item import described  # loads PyTorch

            raise UserError(
                f"callbacks= contains {described(callback)}: expected dpfed.Callback objects, such as those that "
                "dpfed.callbacks.trackers('tensorboard') makes. [callbacks-kind]"
            )
    return callbacks
