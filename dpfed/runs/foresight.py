"""What a run can be refused for before a record is read: a plan that cannot be, and a place where no run can be made.

Nothing here imports torch, which takes seconds, so that a mistake is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpfed.config import Config
from dpfed.data.store.counting import known_count
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.progress import Silent, Watcher
from dpfed.runs.directory import RunDirectory

Progress = Callable[[int, int | None], None]


def refuse_place(folder: str | Path, resume: bool = False) -> None:
    """Refuses a directory where no new run can be made.

    Args:
        folder: of the run.
        resume: a run may be there already; whether it is the right one is seen later (`dpfed.runs.job.check`).

    Raises:
        UserError: saying what is in the way.
    """
    if not resume or RunDirectory.unused(folder):
        RunDirectory.refuse_unusable(folder)


def foresee(config: Config, watcher: Watcher | None = None, owners: int = 1) -> PrivacyPlan | None:
    """Refuses whatever is wrong with a plan, as far as it is known before any record is read, generated or imported.

    Args:
        config: of the run.
        watcher: is told what takes a second.
        owners: processes or sites that are to share the groups.

    Returns:
        The plan, or ``None`` where the number of records is known after an import only.

    Raises:
        UserError: for an impossible plan.
    """
    refuse_many_owners(PrivacyPlan.sketch(config), owners)
    refuse_inexact(config)
    records = known_count(config.data, config.privacy)
    if records is None:
        return None
    PrivacyPlan.sketch(config, records)
    (watcher or Silent()).note(f"accounting for {records:,} records")
    plan = PrivacyPlan.from_config(records, config)
    plan.require_finite()
    return plan


def refuse_inexact(config: Config) -> None:
    """Refuses discrete noise where the sum that it is added to is not proven to move by the sensitivity alone.

    Raises:
        UserError: saying what to do.
    """
    if config.privacy.noise != "discrete":
        return
    said = "privacy.noise = 'discrete' promises what is proven for floating point, too, and "
    if config.bounding.engine in ("vmap", "layerwise"):
        raise UserError(
            f"{said}bounding.engine = '{config.bounding.engine}' passes several groups at once. How far a record moves "
            "the rounding of others' gradients is measured then, and not proven: leave bounding.engine out, or take 'loop'."
        )
    if config.training.sharding != "none":
        raise UserError(f"{said}a sharded model adds gradients up in float32: set training.sharding = 'none'.")
    if config.training.device == "mps":
        raise UserError(f"{said}mps computes norms in float32: set training.device = 'cpu'.")


def refuse_sharding(config: Config, why: str | None = None) -> None:
    """Refuses a sharded model where one process has the whole model.

    Args:
        config: of the run.
        why: what one process does; default: says how to have several.

    Raises:
        UserError: saying what to do.
    """
    if config.training.sharding != "none":
        what = why or "divides a model among the workers of a cluster: add --cluster ray --workers N, or set it to 'none'"
        raise UserError(f"training.sharding = '{config.training.sharding}' {what}.")


def refuse_many_owners(plan: PrivacyPlan, owners: int) -> None:
    """Refuses more workers than groups.

    Raises:
        UserError: saying how many there may be.
    """
    if plan.statistics is not None:
        plan.statistics.refuse_many_owners(owners)
    if owners > plan.groups:
        raise UserError(
            f"{owners:,} workers would share {plan.groups} groups (privacy.batch / bounding.group_size, or 1 where the "
            f"whole batch is contrasted), and each needs one: use at most {plan.groups} workers (or sites)."
        )


def guarded(progress: Progress, config: Config) -> Progress:
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
            PrivacyPlan.sketch(config, total)
        progress(done, total)

    return advance
