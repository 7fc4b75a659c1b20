"""Measures the model of a run before, during and after training, and writes the metrics of its steps."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from torch import Tensor, nn

from dpfed.artifacts.directory import RunDirectory
from dpfed.callbacks import Callback, StepSummary
from dpfed.evaluation.measured import Evaluation
from dpfed.models.parameters import TrainableVector
from dpfed.progress import Progress
from dpfed.runs.build import Parts
from dpfed.runs.noise_alone import noise_alone
from dpfed.training.checkpoint import DamagedCheckpoint
from dpfed.training.steps import Steps


class Measurement:
    """Measures the model of a run before, during and after training.

    The outcome of each query is kept in memory only, and the comparison with the untrained model needs it. After an
    interruption the untrained model is therefore measured again, from the first checkpoint.

    Args:
        run: Directory of the run, into which the figures are written.
        parts: Parts of the run.
        steps: Steps of the run.
        progress: Progress, which shows the stages.
        callbacks: Callbacks that see the figures.
    """

    def __init__(
        self, run: RunDirectory, parts: Parts, steps: Steps, progress: Progress, callbacks: Iterable[Callback]
    ) -> None:
        self._run, self._parts, self._steps = run, parts, steps
        self._progress, self._callbacks = progress, list(callbacks)
        self._untrained: list[Evaluation] | None = None
        self._weights: Tensor | None = None

    def before(self) -> None:
        """Measures the untrained model, if no step has been taken yet."""
        if self._steps.start > 0:
            return
        if self._parts.evaluator.tasks:
            self._progress.note("measuring the model before training")
        self._untrained = self._parts.evaluator(self._parts.model, "untrained", 0)
        if self._untrained or self._parts.store.public:
            self._weights = TrainableVector(self._parts.model).gather().cpu()
        self._record(self._untrained)

    def on_the_way(self, done: int) -> None:
        """Measures the model after `done` steps, with the weights that would be published."""
        with self._steps.averaged_weights():
            self._record(self._parts.evaluator(self._parts.model, "trained", done))

    def after(self) -> None:
        """Measures the trained model, with the published weights, and compares it with the untrained model and noise alone."""
        parts = self._parts
        trained = parts.evaluator(parts.model, "trained", parts.plan.steps)
        if self._untrained is None:
            self._untrained, self._weights = self._untrained_again()
        noise: list[list[Evaluation]] = []
        if self._untrained and self._weights is not None:
            self._progress.note("measuring what noise alone does to the figures")
            noise = noise_alone(parts, self._weights)
        self._record([figure.compared(self._untrained, noise) for figure in trained])

    def untrained_model(self) -> nn.Module | None:
        """Returns a copy of the model with its weights before training; ``None``: not known. Call `after` first."""
        if self._weights is None:
            return None
        model = copy.deepcopy(self._parts.model)
        vector = TrainableVector(model)
        vector.assign(self._weights.to(vector.device))
        return model

    def _untrained_again(self) -> tuple[list[Evaluation], Tensor | None]:
        """Measures a resumed run's untrained model again, and returns its figures and weights.

        The result is ``([], None)`` if there is nothing to measure, or the first checkpoint is missing or damaged.
        """
        paths, evaluator = self._steps.checkpoints.paths(), self._parts.evaluator
        first = next((path for path in paths if path.stem == "step-00000000"), None)
        if first is None or not (evaluator.tasks or self._parts.store.public):
            return [], None
        learner = self._parts.learner.replace(model=copy.deepcopy(self._parts.model))
        try:
            learner.load_weights(first)
        except DamagedCheckpoint:
            self._progress.note(f"the model before training is not measured again, because the checkpoint {first} is damaged")
            return [], None
        return evaluator(learner.model, "untrained", 0), TrainableVector(learner.model).gather()

    def _record(self, figures: list[Evaluation]) -> None:
        known = {(line["step"], line["evaluation"]["name"]) for line in self._run.metric_lines() if "evaluation" in line}
        for figure in figures:
            if (figure.step, figure.name) not in known:  # otherwise it was measured before an interruption
                self._run.append(self._run.metrics, {"step": figure.step, "evaluation": figure.facts()})
        for callback in self._callbacks:
            callback.on_evaluation(figures)


class MetricsFile(Callback):
    """Callback that writes a line about each reported step (`StepSummary.is_reported`) into metrics.jsonl.

    Args:
        run: Directory of the run, which holds the file.
        progress: Progress, which shows the private metrics of each window.
    """

    waits = True

    def __init__(self, run: RunDirectory, progress: Progress) -> None:
        self._run, self._progress = run, progress

    def on_step(self, step: StepSummary) -> None:
        """See `Callback`."""
        if step.window is not None:
            self._progress.note(str(step.window))
        self._run.append(self._run.metrics, {"step": step.done, "epsilon": step.epsilon, **step.metrics()})


class EvaluatedOnTheWay(Callback):
    """Callback that measures the model every few steps, except after the last step, when `Measurement.after` measures it.

    Args:
        measurement: Measurement of the run.
        every: Steps between measurements; 0: no measurement.
    """

    def __init__(self, measurement: Measurement, every: int) -> None:
        self._measurement, self.every = measurement, every

    def is_due(self, step: StepSummary) -> bool:
        """See `Callback`."""
        return bool(self.every) and step.done < step.steps and super().is_due(step)

    def on_step(self, step: StepSummary) -> None:
        """See `Callback`."""
        self._measurement.on_the_way(step.done)
