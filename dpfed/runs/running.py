"""Carries out a run: takes its remaining steps, evaluates during training and at the end, and writes its artifacts."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.resuming import resuming_command
from dpfed.building.model import facts_of
from dpfed.callbacks import Callback, RunInfo, StepSummary
from dpfed.config import Config
from dpfed.data.items.views import ItemViews
from dpfed.errors import Notice, UserError, goes_on
from dpfed.files.atomic import remove_drafts
from dpfed.files.toml_file import leaves
from dpfed.models.folder import save_encoder
from dpfed.progress import Progress
from dpfed.runs.budgeting import hold, settle_at_end
from dpfed.runs.commit_pace import steps_between_commits
from dpfed.runs.job import Job, in_process
from dpfed.runs.lineage import runs_behind
from dpfed.runs.measurement import EvaluatedOnTheWay, Measurement, MetricsFile
from dpfed.runs.outcome import write_outcome
from dpfed.runs.stopping import stopped
from dpfed.training.coordinator import DISCARDED
from dpfed.training.steps import Files, Steps
from dpfed.training.transport import Transport


def run_job(
    job: Job, progress: Progress, connect: Callable[[Job], Transport] = in_process, callbacks: Iterable[Callback] = ()
) -> RunDirectory:
    """Takes the remaining steps of a run, evaluates, and writes model, card and report.

    Args:
        job: The job; the caller has locked its directory.
        progress: Progress, which shows the stages.
        connect: Function that makes the transport after everything is loaded; this process computes as one of the transport's
            workers.
        callbacks: Callbacks that see each step after metrics and evaluation, and before its checkpoint.

    Returns:
        The finished run.

    Raises:
        UserError: For a damaged ledger, a plan that is not the ledger's, too little left of a lifetime budget, or a folder that
            cannot be written.
    """
    with Session(job, progress, connect, callbacks) as session:
        return session.run()


class Session:
    """An open run, as a context manager: `run` takes its steps, or a loop over the session takes them one by one.

    Args:
        job: The job; the caller has locked its directory.
        progress: Progress, which shows the stages.
        connect: Function that makes the transport after everything is loaded; this process computes as one of the transport's
            workers.
        callbacks: Callbacks that see each step after metrics and evaluation, and before its checkpoint.
    """

    def __init__(
        self, job: Job, progress: Progress, connect: Callable[[Job], Transport], callbacks: Iterable[Callback] = ()
    ) -> None:
        self._job, self._progress, self._connect = job, progress, connect
        self._callbacks: list[Callback] = [progress, *callbacks]
        self._untold = list(self._callbacks)  # callbacks that have not heard of the end yet
        self._stack = contextlib.ExitStack()
        self._steps: Steps | None = None

    def __enter__(self) -> Session:
        self._stack.callback(self._job.run.forget_times)
        if isinstance(views := self._job.parts.views, ItemViews):
            self._stack.callback(views.loader.close)
        self._stack.enter_context(_told_of_a_full_disk(self._job.run))
        self._stack.enter_context(goes_on(lambda: stopped(self._job.run)))
        self._stack.enter_context(_telling_of_the_end(self._untold))
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    def run(self) -> RunDirectory:
        """Takes the remaining steps, evaluates, and writes model, card and report.

        Returns:
            The finished run.

        Raises:
            UserError: If the steps were begun before; also see `run_job`.
        """
        steps, measurement = self._begin()
        steps.run(self._connect(self._job), self._seeing(measurement), _advance(self._progress, steps))
        return _finish(self._job, steps, measurement, self._progress, self._untold)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The run's optimizer; it exists from the first step of the loop over the session's steps.

        Raises:
            ValueError: Before the loop has begun.
        """
        if self._steps is None:
            raise ValueError("the optimizer exists only from the first step on: read it within the loop over the steps")
        return self._steps.coordinator.optimizer

    def __iter__(self) -> Iterator[StepSummary]:
        """Takes the remaining steps one by one, and yields each step's summary when the step is on disk and charged.

        After the last step the loop evaluates, and writes model, card and report, as `run` does.

        Raises:
            UserError: If the steps were begun before; also see `run_job`.
        """
        steps, measurement = self._begin()
        advance = _advance(self._progress, steps)
        manual, parameters = self._job.parts.learner.manual, list(self._job.parts.model.parameters())
        for summary in steps.each(self._connect(self._job), self._seeing(measurement)):
            advance(summary.done)
            before = [parameter._version for parameter in parameters]
            yield summary
            if manual and before == [parameter._version for parameter in parameters]:
                warnings.warn(
                    f"manual=True, but the loop's body changed no parameter in step {summary.done}: the noisy gradient is in "
                    ".grad; call steps.optimizer.step() to take the step.",
                    Notice,
                    stacklevel=2,
                )
                manual = False  # warn only once
        _finish(self._job, steps, measurement, self._progress, self._untold)

    def _begin(self) -> tuple[Steps, Measurement]:
        if self._steps is not None:  # a second coordinator must not write the same ledger
            raise UserError(
                "the steps of this open run were begun already: leave the `with` block, and open the run again to take the "
                "remaining steps. [run-twice]"
            )
        run, parts, progress = self._job.run, self._job.parts, self._progress
        remove_drafts(run.path)
        steps = self._steps = open_steps(self._job)
        for path in steps.damaged:
            progress.note(f"the checkpoint {path} is damaged: resuming after step {steps.start}; no step is charged twice")
        if steps.resumed:
            run.rewind_metrics(steps.shown)
        known = RunInfo(parts.config.name, steps.shown, run.path, run.identity[:16], _effective(parts.config))
        for callback in self._callbacks:
            callback.on_run(known)
        hold(run, parts, steps.ledger, progress)
        measurement = Measurement(run, parts, steps, progress, self._callbacks)
        measurement.before()
        return steps, measurement

    def _seeing(self, measurement: Measurement) -> list[Callback]:
        on_the_way = EvaluatedOnTheWay(measurement, self._job.parts.config.evaluation.every)
        return [MetricsFile(self._job.run, self._progress), on_the_way, *self._callbacks]


@contextlib.contextmanager
def _told_of_a_full_disk(run: RunDirectory) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not Path(str(error.filename or "")).is_relative_to(run.path):
            raise
        raise UserError(
            f"{run.path} cannot be written ({error.strerror or error}). What was spent is on record, and no charged step is "
            f"lost: fix the folder; then {resuming_command(run)} resumes. [run-folder-unwritable]"
        ) from error


@contextlib.contextmanager
def _telling_of_the_end(callbacks: list[Callback]) -> Iterator[None]:
    """Tells the callbacks if the run ends early. Their own exceptions are suppressed: these would hide the reason."""
    try:
        yield
    except BaseException:
        for callback in callbacks:
            with contextlib.suppress(Exception):
                callback.on_stop()
        raise


def _finish(job: Job, steps: Steps, measurement: Measurement, progress: Progress, callbacks: list[Callback]) -> RunDirectory:
    run, parts = job.run, job.parts
    with steps.averaged_weights():
        last = steps.ledger.release_of(steps.plan.steps - 1)
        if steps.plan.bounding.method.closed_form and last is not None and last.digest == DISCARDED:
            progress.note(
                "no moments were released, so the model is the one that the run started from. The epsilon is spent all the same"
            )
        measured = "measuring the trained model, and " if parts.evaluator.tasks else ""
        progress.note(f"{measured}writing model, card and report")
        measurement.after()
        save_encoder(run.model, parts.model, facts_of(parts.config), runs_behind(run, parts, steps.ledger))
        write_outcome(run, parts, steps.ledger, measurement.untrained_model() if parts.store.public else None)
    run.delete_secrets()
    settle_at_end(run, parts, steps.ledger, progress)
    with contextlib.ExitStack() as ends:  # calls all of them, even if one fails; the last one pushed is called first
        while callbacks:
            ends.callback(callbacks.pop().on_end)
    return run


def _effective(config: Config) -> dict[str, Any]:
    """Returns the values of all keys that have an effect, by their dotted names."""
    idle = config.without_effect()
    return {key: value for key, value in leaves(config.model_dump()).items() if key not in idle}


def open_steps(job: Job) -> Steps:
    """Opens the remaining private steps of a run.

    Raises:
        UserError: See `Steps`.
    """
    run, config, plan = job.run, job.parts.config, job.parts.plan
    return Steps(
        job.parts.learner,
        Files(run.ledger, run.checkpoints, run.releases, run.commits),
        job.randomness,
        marks={"fixed_seed": config.privacy.seed is not None},
        keep=config.training.keep,
        checkpoint_every=config.training.checkpointed(plan.steps),
        seen_outside=job.parts.terms is not None,
        commit_every=steps_between_commits(job.parts),
    )


def _advance(progress: Progress, steps: Steps) -> Callable[[int], None]:
    """Returns a function that shows the steps. Replayed steps are a separate stage: their pace says nothing about new steps."""
    plan, start, paid = steps.plan, steps.shown, steps.ledger.last_step + 1

    def begun(done: int) -> Callable[[int], None]:
        advance = progress.stage("private steps" if plan.private else "steps", plan.steps)
        advance(done)
        return advance

    again = progress.stage("charged steps, replayed", paid - start) if paid > start else None
    new = None if again else begun(start)

    def show(done: int) -> None:
        nonlocal new
        if again and done <= paid:
            again(done - start)
        if done >= paid:
            new = new or begun(done)
            new(done)

    return show
