"""Makes jobs. A job is a run that is ready to take its next step: a new run in a new directory, or an unfinished run.

Before the first step, this module also tells the user which part of the model is trained, and how much of a caption the model
reads.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import began, contents_of, environment
from dpfed.budgets.given import Budget, set_given
from dpfed.building.model import trained_of
from dpfed.building.own import OwnParts
from dpfed.config import Config
from dpfed.config.configuration import refuse_unmeasured
from dpfed.data.views.words import WordTokenizer
from dpfed.errors import UserError
from dpfed.models.moment_heads import FEWEST_IMAGES
from dpfed.models.moments import ATTRIBUTE, MomentHeads
from dpfed.models.trained import refuse_trained
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress
from dpfed.runs.budgeting import preflight_budget
from dpfed.runs.build import Parts, build
from dpfed.runs.preflight import Preflight
from dpfed.runs.same_parts import refuse_other_parts, settings_of
from dpfed.runs.starts import origin_of
from dpfed.runs.trial_step import refuse_equal_captions, try_step
from dpfed.training.transport import InProcess, Transport

if TYPE_CHECKING:
    from dpfed.protocol.terms import Terms


def say_what_is_trained(parts: Parts, progress: Progress) -> None:
    """Tells the user, before the first step, which part of the model is trained, and how much of a caption the model reads.

    Further notes warn of units that several splits share, and of a run of private moments that cannot learn anything.
    """
    trained = trained_of(parts.model, parts.config)
    progress.note(f"trains {trained}; the sum of a step has {trained.bytes_per_aggregate:,} bytes")
    split = parts.config.evaluation.split
    if parts.store.public and split != "none" and parts.store.share_units("train", split):
        progress.note(
            f"a {parts.store.unit_name} may be in both the train and the {split} split: evaluation figures then look too good"
        )
    heads = getattr(parts.model, ATTRIBUTE, None)
    if isinstance(heads, MomentHeads) and heads.noise.leaves_public(heads.layout.towers):
        progress.note(
            f"views of fewer than {FEWEST_IMAGES:,} images teach nothing: the run spends its epsilon, and returns the public "
            "tower unchanged"
        )
    tokenizer = parts.views.tokenizer
    if tokenizer is None:
        return
    counted = "words" if isinstance(tokenizer, WordTokenizer) else "tokens"
    progress.note(f"the first {tokenizer.context} {counted} of a caption are read; the rest is cut off")


@dataclass(frozen=True)
class Job:
    """A run that is ready to take its next step.

    Attributes:
        run: Directory of the run, which must be locked while the steps are taken.
        parts: Parts of the run.
        randomness: Secret randomness of the run.
    """

    run: RunDirectory
    parts: Parts
    randomness: Randomness


def create_job(
    preflight: Preflight,
    progress: Progress,
    randomness: Randomness | None = None,
    terms: Terms | None = None,
    files: dict[str, str] | None = None,
    given: OwnParts | None = None,
    budget: Budget | None = None,
) -> Job:
    """Makes a new run, in the process of rank 0. The run's directory must not be in use.

    Args:
        preflight: Preflight of the run.
        progress: Progress, which shows the stages.
        randomness: Secret randomness of the run; default: what `secret_of` returns.
        terms: Terms of the federation that the run is for.
        files: Contents of further files of the run, by name.
        given: The user's own parts that were passed in Python.
        budget: Lifetime budget to set for the records: epsilon, or (epsilon, delta); see `set_given`.

    Raises:
        UserError: See `pretrain`.
    """
    randomness = randomness or secret_of(preflight.config)
    parts = build(
        preflight.config,
        randomness,
        progress,
        world_size=preflight.world_size if terms is None else 1,  # a federation's terms say which parties share the groups
        terms=terms,
        known=preflight.plan,
        start=preflight.start,
        features=RunDirectory(preflight.folder).features,
        given=given,
    )
    refuse_trained(parts.model)
    refuse_unmeasured(parts.config, parts.evaluator.tasks)
    try_step(parts)
    if terms is None or RunDirectory.SIMULATION in (files or {}):  # otherwise the records are the sites'
        if parts.config.model.reads_text and not parts.plan.bounding.method.public_records:
            refuse_equal_captions(parts.store)
        if budget is not None:
            set_given(parts.store, budget, parts.plan.promise.unit)
        preflight_budget(preflight.folder, parts.config, parts.store, parts.plan)
    say_what_is_trained(parts, progress)
    origin = origin_of(parts.config, parts.start)
    files = {
        RunDirectory.PROVENANCE: began(
            parts.store,
            parts.config.data,
            parts.learner.public,
            origin,
            parts.own,
            randomness.key("contents"),
            settings_of(given) if given else None,
        ),
        **(files or {}),
    }
    if terms:
        files[RunDirectory.TERMS] = terms.text
    return Job(RunDirectory.create(preflight.folder, parts.config, randomness, files, preflight.comments), parts, randomness)


def secret_of(config: Config) -> Randomness:
    """Returns new secret randomness, or the randomness of the seed that the configuration fixes."""
    seed = config.privacy.seed
    return Randomness.fresh() if seed is None else Randomness.from_seed(seed)


def resume_job(
    run: RunDirectory,
    progress: Progress,
    world_size: int = 1,
    terms: Terms | None = None,
    given: OwnParts | None = None,
    budget: Budget | None = None,
) -> Job:
    """Opens an unfinished run, in the process of rank 0; `world_size` may differ from that before the interruption.

    Args:
        run: Directory of the run, locked by the caller.
        progress: Progress, which shows the stages.
        world_size: Number of processes that share the work.
        terms: Terms of the federation that the run is for.
        given: The user's own parts that were passed in Python; their settings must be those that the run began with.
        budget: Lifetime budget to set for the records: epsilon, or (epsilon, delta); see `set_given`.

    Raises:
        UserError: See `resume`; also for a federation's run without terms, for other records or parts of the user than the run
            began with, and for a budget that cannot be set (see `set_given`).
    """
    if terms is None:
        refuse_federations(run)
    randomness = run.randomness()
    if given:
        refuse_other_parts(run.provenance.get("settings", {}), settings_of(given), run.path)
    run.note_environment(environment())
    parts = build(run.config(), randomness, progress, world_size=world_size, terms=terms, features=run.features, given=given)
    kept = run.provenance.get("data", {}).get("contents")
    if kept is not None and kept != contents_of(parts.store, randomness.key("contents")):
        raise UserError(
            f"{run.path} began with other records than {parts.store.name} has now: give the same records, or choose another "
            "folder. [resume-other-records]"
        )
    if budget is not None:
        set_given(parts.store, budget, parts.plan.promise.unit)
    return Job(run, parts, randomness)


def refuse_federations(run: RunDirectory) -> None:
    """Refuses the run of a federation, simulated or not; the message says how such a run is resumed.

    Raises:
        UserError: If the run is a federation's.
    """
    if run.simulation.is_file():
        raise UserError(
            f"{run.path} simulates a federation: resume it with `dpfed resume {shlex.quote(str(run.path))}` alone, or with "
            "`dpfed.resume`. [resume-simulated]"
        )
    if run.terms.is_file():
        raise UserError(
            f"{run.path} is a federation's run, which only its coordinator resumes: `dpfed federation run FOLDER`, with the "
            "coordinator's folder. [resume-federated]"
        )


def in_process(job: Job) -> Transport:
    """Makes the transport of a run in one process, which has all records and does all the work."""
    return InProcess([job.parts.learner.worker(job.randomness.for_ranks())])
