"""What a run can be refused for before a record is read: a plan that cannot be, and a place where no run can be made.

Nothing here imports torch, which takes seconds, so that a mistake is answered at once.
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
    """A new run that nothing known so far refuses. It is made once, by the command, and `dpfed.runs.job.create_job` takes it.

    Attributes:
        config: of the run.
        folder: where it goes.
        world_size: processes or sites that are to share the groups.
        there: a run is there already; nothing of the configuration was checked.
        plan: of the run; ``None``: the number of records is known after an import only, or a run is there.
        start: the starting weights; ``None``: there are none, or they are looked for later.
        comments: lines that explain the configuration; the run's ``config.toml`` has them above it.
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
        """Refuses whatever is wrong with a run, as far as it is known before any record is read, generated or imported.

        Args:
            config: of the run.
            folder: where it goes.
            world_size: processes or sites that are to share the groups.
            progress: learns what takes a second.
            resume: a run may be there already; whether it is the right one is seen later (`RunDirectory.refuse_another`).
            comments: lines that explain the configuration.

        Raises:
            UserError: for keys without effect, a folder where no run can be made, starting weights that are not there, an
                impossible plan.
        """
        if resume and not RunDirectory.unused(folder):
            return cls(config, Path(folder), world_size, there=True)
        config.refuse_idle()
        RunDirectory.refuse_unusable(folder)
        start = checked_start(config)
        plan = known_plan(config, progress, world_size)
        return cls(config, Path(folder), world_size, plan=plan, start=start, comments=comments)


def known_plan(config: Config, progress: Progress | None = None, world_size: int = 1) -> PrivacyPlan | None:
    """The plan of a configuration, if the number of records is known before an import.

    Args:
        config: of the run.
        progress: learns what takes a second.
        world_size: processes or sites that are to share the groups.

    Returns:
        The plan, or ``None`` where the number of records is known after an import only.

    Raises:
        UserError: for an impossible plan.
    """
    try:
        records = known_count(config.data, config.privacy.unit)
    except UserError:  # what is wrong with the plan comes first, and the records are asked for again below
        records = None
    refuse_impossible(config, world_size, at_most=records or MOST_RECORDS)
    records = known_count(config.data, config.privacy.unit)
    if records is None:
        return None
    (progress or Silent()).note(f"accounting for {records:,} records")
    plan = plan_of(records, config)
    plan.require_finite()
    return plan


def refuse_impossible(config: Config, world_size: int = 1, opens: bool = True, at_most: int = MOST_RECORDS) -> None:
    """Refuses whatever is wrong with a configuration for any number of records.

    Args:
        config: of the run, or of a federation that is to be.
        world_size: processes or sites that are to share the groups.
        opens: the records must be there, and their store may be opened; otherwise its header is read, if there is one.
        at_most: so many training records (or units) there are at most.

    Raises:
        UserError: saying what to change.
    """
    _refuse_few_contrasted(config)
    refuse_too_many_ranks(sketch_of(config, at_most), world_size)
    refuse_inexact(config)
    refuse_records(config, opens)


def _refuse_few_contrasted(config: Config) -> None:
    """Refuses groups that are so small that the loss has nothing to learn from.

    Raises:
        UserError: naming the loss and the key to change.
    """
    method, loss, bounding = method_named(config.bounding.method), config.objective.loss, config.bounding
    batch, size = config.privacy.batch, bounding.group_size
    if method.closed_form or batch < 1:
        return
    each = config.privacy.per_unit if config.privacy.unit == "user" else 1
    expected, keys, own = float(contrasted(config)), ["bounding.group_size"], 0
    if method.public_records:
        keys, own = ["public.records"], 1
    elif method.whole_batch:
        expected, keys = float(batch * each), ["privacy.batch"]
    elif size > batch >= loss.least:
        require_within("group_size", size, loss.least, batch, " (the expected batch)")
    elif size >= 1:
        expected = each * batch / max(1, round(batch / size))  # K is a whole number
        if (cap := bounding.max_group_size) is not None and cap < min(expected, loss.least):
            expected, keys = float(cap), ["bounding.max_group_size"]
    # The draw of half a record less leaves most groups with as many as the loss needs, or nearly so.
    if expected >= loss.least - 0.5:
        return
    if batch < loss.least and "bounding.group_size" in keys:
        keys.insert(0, "privacy.batch")
    raise UserError(
        f"objective.name = '{config.objective.name}' learns nothing from {_records(max(0.0, expected))}: set "
        f"{' and '.join(keys)} to {loss.least - own} or more. [run-contrast-few]"
    )


def _records(count: float) -> str:
    return f"{count:.4g} record{'s' * (count != 1)}"


def refuse_records(config: Config, opens: bool = True) -> None:
    """Refuses records that the model cannot read as they are, or that cannot be measured as asked.

    That shows where they are in a store on this machine; others are looked at when they have been imported or copied.

    Args:
        config: of the run.
        opens: see `refuse_impossible`.

    Raises:
        UserError: where there are none, for records without the captions that the model reads, for squares that would be shrunk
            although nobody says so, for an unknown source, an impossible evaluation, and an unfit public store.
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
    """Refuses larger squares than the default, where nobody says that they should be shrunk."""
    own_size = config.model.kind == "open_clip" or config.model.timm is not None
    if config.data.size is None and not own_size and side is not None and side > SIZE:
        raise UserError(
            f"the images of {path} are squares of {side} pixels, and without data.size they would be shrunk to {SIZE}: set "
            f"data.size = {side}, or to the side that you need. [run-images-large]"
        )


def refuse_uncaptioned(kind: str, name: str, config: Config) -> None:
    """Refuses records without captions where the model reads some.

    Args:
        kind: of the records.
        name: of the data set.
        config: of the run.

    Raises:
        UserError: naming the model and the records.
    """
    if config.model.reads_text and kind != "image-text":
        raise UserError(f"model.kind = '{config.model.kind}' needs captions, and {name} has none. [run-captions-missing]")


def refuse_inexact(config: Config) -> None:
    """Refuses discrete noise where the sum that it is added to is not proven to move by the sensitivity alone.

    Raises:
        UserError: saying what to do.
    """
    if config.privacy.noise != "discrete":
        return
    said = "privacy.noise = 'discrete' promises only what is proven in floating point, too, and "
    if config.bounding.engine == "layerwise":
        raise UserError(
            f"{said}bounding.engine = 'layerwise' passes several groups at once. That each is rounded independently "
            "is then checked, but not proven: leave bounding.engine out, or take 'loop'. [run-discrete-layerwise]"
        )
    if config.training.device == "mps":
        raise UserError(f"{said}mps computes norms in float32: set training.device = 'cpu'. [run-discrete-mps]")


def refuse_too_many_ranks(plan: PrivacyPlan, world_size: int) -> None:
    """Refuses more workers than groups.

    Raises:
        UserError: saying how many there may be.
    """
    if world_size > plan.groups:
        raise UserError(
            f"{world_size:,} workers would share {plan.groups} groups (privacy.batch / bounding.group_size, or 1 where the "
            f"whole batch is contrasted), and each needs one: use at most {plan.groups} workers (or sites). [run-workers-many]"
        )


def guarded(progress: ImportProgress, config: Config) -> ImportProgress:
    """The progress of an import, which ends as soon as the source turns out to hold too few records for the plan.

    Args:
        progress: of the import.
        config: of the run.
    """
    seen = False

    def advance(done: int, total: int | None) -> None:
        nonlocal seen
        if total is not None and not seen:
            seen = True
            sketch_of(config, total)
        progress(done, total)

    return advance
