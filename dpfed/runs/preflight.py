"""Checks a run before any record is read: refuses an impossible plan, or a folder where no run can be made.

This module does not import torch, which would take seconds, so that a mistake is reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.building.method import contrasted
from dpfed.building.plan import plan_of, sketch_of
from dpfed.config import Config
from dpfed.data.importers.detection import refuse_unknown
from dpfed.data.public_store import given_public
from dpfed.data.store.counting import known_count, store_at_hand
from dpfed.data.store.layout import read_layout
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.evaluation.tasks import refuse_empty_split, tasks_of
from dpfed.models.options import SIZE
from dpfed.models.starting import StartingWeights
from dpfed.privacy.method import method_named
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.plan_checks import MOST_RECORDS, require_within
from dpfed.progress import Progress, Silent
from dpfed.runs.starts import checked_start

ImportProgress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Preflight:
    """A new run that has passed the first checks; `dpfed.runs.job.create_job` makes the run's directory from it.

    Attributes:
        config: Configuration of the run.
        folder: Folder of the run.
        world_size: Number of processes or sites that will share the groups.
        there: Whether the folder holds a run already, in which case the configuration was not checked.
        plan: Plan of the run; ``None``: the number of records is unknown before an import, or the folder holds a run.
        start: Starting weights; ``None``: the configuration names none, or they are looked up later.
        comments: Lines that explain the configuration, written above it in the run's ``config.toml``.
    """

    config: Config
    folder: Path
    world_size: int = 1
    there: bool = False
    plan: PrivacyPlan | None = None
    start: StartingWeights | None = None
    comments: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        config: Config,
        folder: str | Path,
        world_size: int = 1,
        progress: Progress | None = None,
        resume: bool = False,
        comments: Sequence[str] = (),
    ) -> Preflight:
        """Makes all checks of a run that are possible before any record is read, generated or imported.

        Args:
            config: Configuration of the run.
            folder: Folder of the run.
            world_size: Number of processes or sites that will share the groups.
            progress: Progress, which shows the stages that take a second.
            resume: Whether the folder may hold a run already; `RunDirectory.refuse_another` later checks that it is this run.
            comments: Lines that explain the configuration.

        Raises:
            UserError: For keys without effect, a folder where no run can be made, starting weights or records that are missing
                or unfit, or an impossible plan.
        """
        if resume and not RunDirectory.unused(folder):
            return cls(config, Path(folder), world_size, there=True)
        config.refuse_idle()
        RunDirectory.refuse_unusable(folder)
        start = checked_start(config)
        plan = known_plan(config, progress, world_size)
        return cls(config, Path(folder), world_size, plan=plan, start=start, comments=comments)


def known_plan(config: Config, progress: Progress | None = None, world_size: int = 1) -> PrivacyPlan | None:
    """Returns the plan of a configuration, if the number of records is known before an import.

    Args:
        config: Configuration of the run.
        progress: Progress, which shows the stages that take a second.
        world_size: Number of processes or sites that will share the groups.

    Returns:
        The plan, or ``None`` if the number of records is unknown before an import.

    Raises:
        UserError: For an impossible plan, or records that are missing or unfit.
    """
    try:
        records = known_count(config.data, config.privacy.unit)
    except UserError:  # errors of the plan are reported first; the second call below reports those of the records
        records = None
    refuse_impossible(config, world_size, at_most=records or MOST_RECORDS)
    records = known_count(config.data, config.privacy.unit)
    if records is None:
        return None
    (progress or Silent()).note(f"computing noise and epsilon for {records:,} records")
    plan = plan_of(records, config)
    plan.require_finite()
    return plan


def refuse_impossible(config: Config, world_size: int = 1, opens: bool = True, at_most: int = MOST_RECORDS) -> None:
    """Refuses a configuration that is impossible however many records there are, or whose records are missing or unfit.

    Args:
        config: Configuration of the run, or of a planned federation.
        world_size: Number of processes or sites that will share the groups.
        opens: Whether the records must exist and their store may be opened; otherwise only the store's header is read, if the
            store exists.
        at_most: Largest possible number of training records (or units).

    Raises:
        UserError: If the configuration is impossible, or its records are missing or unfit (see `refuse_records`); the message
            says what to change.
    """
    _refuse_few_contrasted(config)
    refuse_too_many_ranks(sketch_of(config, at_most), world_size)
    refuse_inexact(config)
    refuse_records(config, opens)


def _refuse_few_contrasted(config: Config) -> None:
    """Refuses groups that are so small that the loss has nothing to learn from.

    Raises:
        UserError: If groups are too small; the message names the loss and the keys to change.
    """
    method, loss, bounding = method_named(config.bounding.method), config.objective.loss, config.bounding
    batch, size = config.privacy.batch, bounding.group_size
    if method.closed_form or batch < 1:
        return
    each = config.privacy.per_unit if config.privacy.unit == "user" else 1
    expected, keys, private = float(contrasted(config)), ["bounding.group_size"], 0
    if method.public_records:
        keys, private = ["public.records"], 1
    elif method.whole_batch:
        expected, keys = float(batch * each), ["privacy.batch"]
    elif size > batch >= loss.least:
        require_within("group_size", size, loss.least, batch, " (the expected batch)")
    elif size >= 1:
        expected = each * batch / max(1, round(batch / size))  # K is a whole number
        if (cap := bounding.max_group_size) is not None and cap < min(expected, loss.least):
            expected, keys = float(cap), ["bounding.max_group_size"]
    # Half a record fewer is tolerated: most groups then still have as many records as the loss needs, or nearly so.
    if expected >= loss.least - 0.5:
        return
    if batch < loss.least and "bounding.group_size" in keys:
        keys.insert(0, "privacy.batch")
    raise UserError(
        f"objective.name = '{config.objective.name}' compares records with each other, and learns nothing from "
        f"{_records(max(0.0, expected))} at a time: set {' and '.join(keys)} to {loss.least - private} or more. "
        "[run-contrast-few]"
    )


def _records(count: float) -> str:
    return f"{count:.4g} record{'s' * (count != 1)}"


def refuse_records(config: Config, opens: bool = True) -> None:
    """Refuses records that the model cannot read as they are, or that the evaluation cannot measure.

    This function can check only records that are in a store on this machine. Other records are checked once they are imported
    or copied.

    Args:
        config: Configuration of the run.
        opens: Whether the records must exist and their store may be opened; see `refuse_impossible`.

    Raises:
        UserError: For missing records, records without the captions that the model reads, square images that would be shrunk
            although no key says so, an unknown source, an impossible evaluation, or an unfit public store.
    """
    refuse_unknown(config.data.source)
    there = config.data.path is not None and os.path.exists(os.path.expanduser(config.data.path))
    if (opens or there) and (path := store_at_hand(config.data)) is not None:
        layout = read_layout(path)
        refuse_uncaptioned(layout.header["kind"], layout.header["name"], config)
        _refuse_shrinking(path, layout.header["images"].get("size"), config)
        refuse_empty_split(layout.splits, layout.header["name"], config.evaluation)
        if opens:
            tasks_of(RecordStore.open(path), config.evaluation, config.model)
    if config.reads_public_store:
        given_public(config.public, config.model.reads_text)


def _refuse_shrinking(path: Path, side: int | None, config: Config) -> None:
    """Refuses square images larger than the default size, if the configuration does not say that they should be shrunk."""
    own_size = config.model.kind == "open_clip" or config.model.timm is not None
    if config.data.size is None and not own_size and side is not None and side > SIZE:
        raise UserError(
            f"the images of {path} are squares of {side} pixels, and without data.size they would be shrunk to {SIZE}: set "
            f"data.size = {side}, or another side that you need. [run-images-large]"
        )


def refuse_uncaptioned(kind: str, name: str, config: Config) -> None:
    """Refuses records without captions if the model reads captions.

    Args:
        kind: Kind of the records, such as ``image-text``.
        name: Name of the data set.
        config: Configuration of the run.

    Raises:
        UserError: If captions are missing; the message names the model and the records.
    """
    if config.model.reads_text and kind != "image-text":
        raise UserError(
            f"model.kind = '{config.model.kind}' needs captions, but {name} has none: import records with captions, or set "
            "model.kind = 'image'. [run-captions-missing]"
        )


def refuse_inexact(config: Config) -> None:
    """Refuses discrete noise if there is no proof that a record changes the sum by at most the sensitivity.

    Raises:
        UserError: For discrete noise with the layerwise engine, or on mps; the message says what to do.
    """
    if config.privacy.noise != "discrete":
        return
    said = "privacy.noise = 'discrete' requires proofs that include floating-point rounding, and "
    if config.bounding.engine == "layerwise":
        raise UserError(
            f"{said}bounding.engine = 'layerwise' passes several groups through the model at once. It is only tested, not "
            "proven, that other groups do not change how a group is rounded: leave bounding.engine out, or set it to 'loop'. "
            "[run-discrete-layerwise]"
        )
    if config.training.device == "mps":
        raise UserError(f"{said}mps computes norms in float32: set training.device = 'cpu'. [run-discrete-mps]")


def refuse_too_many_ranks(plan: PrivacyPlan, world_size: int) -> None:
    """Refuses a run with more workers than groups.

    Raises:
        UserError: If there are more workers than groups; the message gives the largest possible number.
    """
    if world_size > plan.groups:
        several = "" if plan.groups == 1 else "s"
        groups, most = f"{plan.groups:,} group{several}", f"{plan.groups:,} worker{several} or site{several}"
        raise UserError(
            f"{world_size:,} workers would share {groups} (privacy.batch / bounding.group_size, or 1 where the whole batch is "
            f"contrasted), and each worker needs a group: use at most {most}. [run-workers-many]"
        )


def guarded(progress: ImportProgress, config: Config) -> ImportProgress:
    """Wraps an import's progress, so that the import ends as soon as the source proves to hold too few records for the plan.

    Args:
        progress: Progress of the import.
        config: Configuration of the run.

    Returns:
        The wrapped progress; it raises a `UserError` for too few records.
    """
    seen = False

    def advance(done: int, total: int | None) -> None:
        nonlocal seen
        if total is not None and not seen:
            seen = True
            sketch_of(config, total)
        progress(done, total)

    return advance
