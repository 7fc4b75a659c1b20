"""The run itself: the steps that are left, evaluation on the way and at the end, and what it leaves behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.building.model import facts_of
from dpfed.callbacks import Callback, RunInfo
from dpfed.config import Config
from dpfed.errors import UserError, goes_on
from dpfed.files.atomic import remove_drafts
from dpfed.files.toml_file import leaves
from dpfed.models.folder import save_encoder
from dpfed.progress import Progress
from dpfed.runs.budgeting import hold, settle_at_end
from dpfed.runs.job import Job, in_process
from dpfed.runs.lineage import runs_behind
from dpfed.runs.measurement import EvaluatedOnTheWay, Measurement, MetricsFile
from dpfed.runs.outcome import write_outcome
from dpfed.runs.stopping import resuming_command, stopped
from dpfed.training.coordinator import DISCARDED
from dpfed.training.steps import Files, Steps
from dpfed.training.transport import Transport


def run_job(
    job: Job, progress: Progress, connect: Callable[[Job], Transport] = in_process, callbacks: Iterable[Callback] = ()
) -> RunDirectory:
    """Takes the steps that are left, evaluates, and writes model, card and report.

    Args:
        job: what to do; its directory is locked by the caller.
        progress: sees the stages.
        connect: makes the transport, once all is loaded; this process is one of its workers.
        callbacks: see each step after metrics and evaluation, and before its checkpoint.

    Raises:
        UserError: for a damaged ledger, another plan, a lifetime budget without room; for a folder that cannot be written.
    """
    callbacks = [progress, *callbacks]
    try:
        with goes_on(lambda: stopped(job.run)), _telling_of_the_end(callbacks):
            return _run(job, progress, connect, callbacks)
    except OSError as error:
        if not str(error.filename or "").startswith(str(job.run.path)):
            raise
        raise UserError(
            f"{job.run.path} cannot be written ({error.strerror or error}). What was spent is on record, and no step is lost: "
            f"fix the folder; then {resuming_command(job.run)} resumes. [run-folder-unwritable]"
        ) from error
    finally:
        job.run.forget_times()


@contextlib.contextmanager
def _telling_of_the_end(callbacks: list[Callback]) -> Iterator[None]:
    """Tells callbacks of a run that ends early. What they raise then would hide why it ended."""
    try:
        yield
    except BaseException:
        for callback in callbacks:
            with contextlib.suppress(Exception):
                callback.on_stop()
        raise


def _run(job: Job, progress: Progress, connect: Callable[[Job], Transport], callbacks: list[Callback]) -> RunDirectory:
    run, parts = job.run, job.parts
    remove_drafts(run.path)
    steps = open_steps(job)
    for path in steps.damaged:
        progress.note(f"the checkpoint {path} is damaged: resuming after step {steps.start}; no step is charged twice")
    if steps.resumed:
        run.rewind_metrics(steps.start)
    known = RunInfo(parts.config.name, steps.start, run.path, run.identity[:16], _effective(parts.config))
    for callback in callbacks:
        callback.on_run(known)
    hold(run, parts, steps.ledger, progress)
    measurement = Measurement(run, parts, steps, progress, callbacks)
    measurement.before()
    written = MetricsFile(run, progress)
    on_the_way = EvaluatedOnTheWay(measurement, parts.config.evaluation.every)
    steps.run(connect(job), [written, on_the_way, *callbacks], _advance(progress, steps))
    with steps.averaged_weights():
        last = steps.ledger.release_of(steps.plan.steps - 1)
        if steps.plan.bounding.method.closed_form and last is not None and last.digest == DISCARDED:
            progress.note("no moments were released, so the model is the public one; another run costs its epsilon again")
        measured = "measuring the trained model, and " if parts.evaluator.tasks else ""
        progress.note(f"{measured}writing model, card and report")
        measurement.after()
        save_encoder(run.model, parts.model, facts_of(parts.config), runs_behind(run, parts, steps.ledger))
        write_outcome(run, parts, steps.ledger)
    run.delete_secrets()
    settle_at_end(run, parts, steps.ledger, progress)
    for callback in callbacks:
        callback.on_end()
    return run


def _effective(config: Config) -> dict[str, Any]:
    """Every key that has an effect, by its dotted name, with its value."""
    idle = config.without_effect()
    return {key: value for key, value in leaves(config.model_dump()).items() if key not in idle}


def open_steps(job: Job) -> Steps:
    """The private steps of a run that are left.

    Raises:
        UserError: see `Steps`.
    """
    run, config, plan = job.run, job.parts.config, job.parts.plan
    return Steps(
        job.parts.trainer,
        Files(run.ledger, run.checkpoints, run.releases),
        job.randomness,
        marks={"fixed_seed": config.privacy.seed is not None},
        keep=config.training.keep,
        checkpoint_every=config.training.checkpointed(plan.steps),
        seen_outside=job.parts.terms is not None,
    )


def _advance(progress: Progress, steps: Steps) -> Callable[[int], None]:
    """Shows the steps. Those that are taken again are a stage of their own, as they tell nothing of the time that is left."""
    plan, start, paid = steps.plan, steps.start, steps.ledger.last_step + 1

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
