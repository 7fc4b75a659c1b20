"""The run itself: the steps that are left, evaluation on the way and at the end, and what it leaves behind."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from dpfed.artifacts.directory import RunDirectory, scalars
from dpfed.artifacts.provenance import ID_CHARACTERS, UNKNOWN
from dpfed.building.model import facts_of
from dpfed.errors import UserError, goes_on
from dpfed.evaluation.suite import Evaluation
from dpfed.evaluation.tasks import tasks_of
from dpfed.files.atomic import remove_drafts
from dpfed.files.reading import read_bytes
from dpfed.models.folder import save_encoder
from dpfed.models.options import PROCEDURAL
from dpfed.models.parameters import TrainableVector
from dpfed.models.summary import start_of
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Watcher
from dpfed.runs.assembly import Components
from dpfed.runs.budgeting import hold, settle_at_end
from dpfed.runs.job import Job, in_process
from dpfed.runs.noise_alone import noise_alone
from dpfed.runs.outcome import write_outcome
from dpfed.training.checkpoint import Checkpoints, DamagedCheckpoint, Progress, steps_of
from dpfed.training.coordinator import DISCARDED, Coordinator, StepSummary
from dpfed.training.post_processing import averaged_weights
from dpfed.training.releases import Releases
from dpfed.training.trainer import Observer, Transport, train

_CURVE_POINTS = 50  # epsilon over steps is computed at about so many steps


def run_job(
    job: Job,
    watcher: Watcher,
    connect: Callable[[Job], Transport] = in_process,
    observers: Iterable[Callable[[StepSummary], None]] = (),
) -> RunDirectory:
    """Takes the steps that are left, evaluates, and writes model, card and report.

    Args:
        job: what to carry out; its directory is locked by the caller.
        watcher: sees the stages.
        connect: reaches the workers, of which this process has one; called when all is loaded.
        observers: called after each step with its public summary.

    Raises:
        UserError: for a damaged ledger, another plan, a lifetime budget without room; for a folder that cannot be written.
    """
    try:
        with goes_on(lambda: stopped(job.run)):
            return _run(job, watcher, connect, observers)
    except OSError as error:
        if not str(error.filename or "").startswith(str(job.run.path)):
            raise
        raise UserError(
            f"{job.run.path} cannot be written ({error.strerror or error}). What was spent is on record, and no step is lost: "
            f"fix the folder; then {_how(job.run)} resumes. [run-folder-unwritable]"
        ) from error
    finally:
        job.run.forget_times()


def stopped(run: RunDirectory, options: str = "") -> str:
    """How far a run came that the user ended, and which command resumes it.

    Args:
        run: its directory.
        options: of the command that resumes it.
    """
    done = Ledger.open(run.ledger).last_step + 1 if _has_header(run.ledger) else 0
    return f"stopped {f'after step {done:,}' if done else 'before the first step'}; {_how(run, options)} resumes"


def _how(run: RunDirectory, options: str = "") -> str:
    institutions = run.terms.is_file() and not run.simulation.is_file()
    return "its server, started again (`flwr run`)," if institutions else f"`dpfed resume {run.path}{options}`"


def _run(
    job: Job, watcher: Watcher, connect: Callable[[Job], Transport], observers: Iterable[Callable[[StepSummary], None]]
) -> RunDirectory:
    run, parts, randomness = job.run, job.parts, job.randomness
    config, plan = parts.config, parts.plan
    checkpoints, interrupted = Checkpoints(run.checkpoints, config.training.keep), _has_header(run.ledger)
    for folder in (run.path, run.checkpoints, run.releases):
        remove_drafts(folder)
    ledger, start, coordinator = _pick_up(run, parts, randomness, checkpoints, watcher)
    hold(run, parts, ledger, watcher)
    if interrupted:
        ledger.note_resumed(start)
    measured = bool(tasks_of(parts.store, config.evaluation, config.model))
    if start == 0 and measured:
        watcher.note("measuring the model before training")
    untrained = parts.evaluate("untrained", 0) if start == 0 else None
    weights = TrainableVector(parts.model).gather().cpu() if untrained else None
    if untrained is not None:
        _record(run, untrained, watcher)

    def keep_metrics(summary: StepSummary) -> None:
        if summary.window is not None:
            watcher.note(str(summary.window))
        spent = ledger.epsilon_after(summary.done) if plan.has_guarantee else None
        _add(run, {"step": summary.done, "epsilon": spent, **summary.figures()}, watcher)

    def keep_checkpoint(summary: StepSummary) -> None:
        checkpoints.save(Progress(summary.done, ledger.charged, plan.fingerprint), parts.model, coordinator)
        # Should the newest checkpoint be damaged, steps since the one before are taken again, bit for bit, on any machine.
        # A process can also compute older ones again where it computed them first; institutions do not answer twice.
        reserves = checkpoints.reserves()
        Releases(run.releases).forget(before=reserves[0] if parts.terms else reserves[-2:][0])

    def evaluate_on_the_way(summary: StepSummary) -> None:
        with averaged_weights(parts.model, coordinator.post_processors):
            _record(run, parts.evaluate("trained", summary.done), watcher)

    def is_measured(summary: StepSummary) -> bool:
        every = config.evaluation.every
        return bool(every) and summary.done < plan.steps and _due(summary, plan, every)

    # Sites get the parameters in every step, so they wait.
    coordinator.ahead = parts.terms is None
    points = max(1, plan.steps // _CURVE_POINTS)
    own = [
        Observer(keep_metrics, lambda summary: summary.window is not None or _due(summary, plan, points)),
        Observer(evaluate_on_the_way, is_measured),
        Observer(keep_checkpoint, lambda summary: _due(summary, plan, config.training.checkpointed(plan.steps))),
    ]
    kept = dataclasses.replace(parts, feature_cache=(run.features, watcher))
    transport = connect(dataclasses.replace(job, parts=kept))
    advance = _progress(watcher, plan, start, ledger.last_step + 1)
    train(transport, coordinator, range(start, plan.steps), [*own, *map(Observer, observers)], advance)
    with averaged_weights(parts.model, coordinator.post_processors):
        last = ledger.release_of(plan.steps - 1)
        if plan.bounding.method.closed_form and last is not None and last.digest == DISCARDED:
            watcher.note("no moments were released, so the model is the public one; another run costs its epsilon again")
        watcher.note(f"{'measuring the trained model, and ' if measured else ''}writing model, card and report")
        trained = parts.evaluate("trained", plan.steps)
        # What came of each query is kept in memory only, so after an interruption the untrained model is measured again.
        if untrained is None:
            untrained, weights = _untrained_again(parts, checkpoints, watcher)
        noise = []
        if untrained and weights is not None:
            watcher.note("measuring what noise alone does to the figures")
            noise = noise_alone(parts, weights)
        _record(run, [figure.compared(untrained, noise) for figure in trained], watcher)
        save_encoder(run.model, parts.model, facts_of(config), _runs_of(run, parts, ledger))
        write_outcome(run, parts, ledger)
    run.delete_secrets()
    settle_at_end(run, parts, ledger, watcher)
    return run


def _progress(watcher: Watcher, plan: PrivacyPlan, start: int, paid: int) -> Callable[[int], None]:
    """Shows the steps. Those that are taken again are a stage of their own, as they tell nothing of the time that is left.

    Args:
        watcher: sees the stages.
        plan: of the run.
        start: steps that need not be taken again.
        paid: steps that are charged.
    """

    def begun(done: int) -> Callable[[int], None]:
        advance = watcher.stage("private steps" if plan.private else "steps", plan.steps)
        advance(done)
        return advance

    again = watcher.stage("charged steps, replayed", paid - start) if paid > start else None
    new = None if again else begun(start)

    def show(done: int) -> None:
        nonlocal new
        if again and done <= paid:
            again(done - start)
        if done >= paid:
            new = new or begun(done)
            new(done)

    return show


def _untrained_again(parts: Components, checkpoints: Checkpoints, watcher: Watcher) -> tuple[list[Evaluation], Tensor | None]:
    """Figures and weights before training, of a run that is resumed; none where its first checkpoint is gone."""
    first = next((path for path in checkpoints.paths() if path.stem == "step-00000000"), None)
    if first is None or parts.config.evaluation.split == "none":
        return [], None
    before = dataclasses.replace(parts, model=copy.deepcopy(parts.model))
    try:
        before.load_weights(first)
    except DamagedCheckpoint as error:
        watcher.note(f"the model before training is not measured again: {error}")
        return [], None
    return before.evaluate("untrained", 0), TrainableVector(before.model).gather()


def _due(summary: StepSummary, plan: PrivacyPlan, every: int) -> bool:
    return summary.done % every == 0 or summary.done == plan.steps


def _pick_up(
    run: RunDirectory, parts: Components, randomness: Randomness, checkpoints: Checkpoints, watcher: Watcher
) -> tuple[Ledger, int, Coordinator]:
    """Ledger, first step and coordinator: from the last checkpoint that is not damaged, if there is any."""
    saved = checkpoints.paths()
    marks = {"fixed_seed": parts.config.privacy.seed is not None}
    if _has_header(run.ledger):
        ledger = Ledger.open(run.ledger)
    elif saved:
        raise UserError(
            f"{run.ledger} is lost or damaged, and {saved[-1].name} exists: spending is unknown. Restore it. [resume-no-ledger]"
        )
    else:
        run.ledger.unlink(missing_ok=True)  # a header that a crash cut short: nothing was spent yet
        ledger = Ledger.create(run.ledger, parts.plan, marks, parts.block)
    ledger.require_current()
    if ledger.plan.fingerprint != parts.plan.fingerprint:
        raise UserError(
            f"the plan of {run.ledger} is not that of config.toml and the records (N was {ledger.plan.sampling.records:,}, is "
            f"{parts.plan.sampling.records:,}): restore both, or start a new run. [resume-plan-changed]"
        )
    if ledger.marks != marks:
        raise UserError(f"{run.ledger} began with {ledger.marks}, and config.toml says {marks}: change it back. [resume-marks]")
    ledger.note_world_size(parts.world_size)
    coordinator = parts.coordinator(randomness, ledger, Releases(run.releases))
    if not saved:
        checkpoints.save(Progress(0, 0, parts.plan.fingerprint), parts.model, coordinator)
        return ledger, 0, coordinator
    progress, damaged = checkpoints.resume(parts.model, coordinator)
    seen = max(progress.charged, steps_of(saved[-1]))
    if progress.fingerprint != parts.plan.fingerprint or seen > ledger.charged:
        raise UserError(
            f"{saved[-1]} and {run.ledger} do not belong together: the checkpoint saw {seen} releases, the ledger holds "
            f"{ledger.charged}. Restore the ledger. [resume-ledger-behind]"
        )
    for path in damaged:
        watcher.note(f"the checkpoint {path} is damaged: resuming after step {progress.step}; no step is charged twice")
    run.rewind_metrics(progress.step)
    return ledger, progress.step, coordinator


def _has_header(ledger: Path) -> bool:
    """Whether there is a ledger, of which a crash has not cut even the first line short."""
    try:
        return b"\n" in read_bytes(ledger)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"cannot read {ledger}: {error.strerror or error}. Restore it. [resume-ledger-unreadable]") from error


def _record(run: RunDirectory, figures: list[Evaluation], watcher: Watcher) -> None:
    known = {(line["step"], line["evaluation"]["name"]) for line in run.metric_lines() if "evaluation" in line}
    for figure in figures:
        if (figure.step, figure.name) in known:
            continue  # measured before an interruption
        _add(run, {"step": figure.step, "evaluation": figure.facts()}, watcher)
    watcher.evaluated(figures)


def _add(run: RunDirectory, line: dict[str, Any], watcher: Watcher) -> None:
    """Adds a line to metrics.jsonl, and shows the watcher its figures."""
    run.append(run.metrics, line)
    watcher.figures(line["step"], scalars(line))


def _runs_of(run: RunDirectory, parts: Components, ledger: Ledger) -> list[dict[str, Any]]:
    """What a model says of the runs that made it: those that made its starting weights, and then its own.

    Args:
        run: the directory of its own run.
        parts: of the run.
        ledger: of the run.

    Returns:
        Of each run ``run`` (its id), ``data`` (the name of its records), ``public`` (anyone may see them; ``None``: not known),
        ``generated`` (they show no person), ``guarantee`` (whether one holds), ``epsilon``, ``delta`` and ``unit`` (of the
        guarantee).
    """
    start = run.provenance.get("start")
    before: list[dict[str, Any]] = []
    if start is not None:
        before = start["trained"] or [UNKNOWN]
    elif start_of(parts.config.model) != "random":
        before = [UNKNOWN]  # those of an open_clip model
    plan, institutions = parts.plan, parts.terms is not None and not run.simulation.is_file()
    guarantee = plan.has_guarantee and not ledger.marks.get("fixed_seed", False) and math.isfinite(ledger.epsilon)
    own = {
        "run": run.identity[:ID_CHARACTERS],
        "data": "the sites' records" if institutions else parts.store.name,
        "public": parts.store.public and not institutions,
        "generated": parts.config.data.source in ("shapes", PROCEDURAL),
        "guarantee": guarantee,
        **({"epsilon": ledger.epsilon, "delta": plan.promise.delta, "unit": plan.promise.protected} if guarantee else {}),
    }
    return [*before, own]
