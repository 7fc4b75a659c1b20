"""Public records that stand in for private ones: what a forecast measures, and what a rehearsal trains on.

Of the private records only their number counts, which the plan makes public anyway. Nothing here opens them, and nothing here
imports torch, so that a mistake is answered at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpfed.building.plan import plan_of, sketch_of
from dpfed.config import Config, DataConfig
from dpfed.data.store.counting import known_count
from dpfed.data.store.layout import read_layout
from dpfed.errors import UserError
from dpfed.paths import local_path
from dpfed.privacy.plan import PrivacyPlan
from dpfed.progress import Progress
from dpfed.runs.preflight import refuse_impossible

PROCEDURAL, SHAPES = "procedural", "shapes"
LEAST_GROUPS = 8  # that a gradient is measured on


@dataclass(frozen=True)
class Proxy:
    """Which public records stand in.

    Attributes:
        source: ``store``, or what is generated: ``procedural`` or ``shapes``.
        path: of the store; ``None``: they are generated.
        count: training records that a store has; of generated ones, as many as are wanted.
    """

    source: str
    path: Path | None = None
    count: int | None = None

    @property
    def title(self) -> str:
        """For people."""
        if self.path is not None:
            return str(self.path)
        return "generated captioned shapes" if self.source == SHAPES else "generated procedural images"

    def at_most(self, wanted: int) -> int:
        """How many training records there can be, of so many."""
        return wanted if self.count is None else min(wanted, self.count)


def declared_plan(config: Config, records: int | None, progress: Progress) -> PrivacyPlan:
    """The plan of a private run, from the number of its records alone.

    Args:
        config: of the private run.
        records: N, where the user says it; default: what the configuration or the store says.
        progress: learns what takes seconds.

    Raises:
        UserError: for an impossible plan, a number that nobody knows yet, or a method without groups or without noise.
    """
    plan = sketch_of(config) if records is None else sketch_of(config, records)
    if not plan.private:
        raise UserError(
            "bounding.method = 'none' adds no noise, so there is nothing to forecast: set bounding.method = 'group', and "
            "privacy.epsilon. [forecast-plan-no-noise]"
        )
    if plan.bounding.method.whole_batch:
        raise UserError(
            f"bounding.method = '{plan.bounding.method_name}' contrasts the whole batch at once, and a forecast measures "
            "gradients of groups: set bounding.method = 'group' or 'public'. [forecast-plan-batch]"
        )
    refuse_impossible(config, opens=False)
    if records is None:
        records = known_count(config.data, config.privacy.unit)
    if records is None:
        raise UserError(
            f"the number of records of data.source = '{config.data.source}' is known only after an import: give it, as a "
            "public number, with --records N. [forecast-plan-records]"
        )
    sketch_of(config, records)
    progress.note(f"accounting for {records:,} records")
    plan = plan_of(records, config)
    plan.require_finite()
    return plan


def chosen(public: str | None, config: Config, plan: PrivacyPlan) -> Proxy:
    """The public records that a user names, checked as far as a store's header and index tell.

    Args:
        public: a record store, or ``procedural`` or ``shapes``; default: procedural images.
        config: of the private run.
        plan: of the private run.

    Raises:
        UserError: for records that are not public, of another kind than the model reads, or too few.
    """
    if public in (None, PROCEDURAL, SHAPES):
        return Proxy(public or PROCEDURAL)
    path = local_path(public, "--public")
    header = read_layout(path).header
    if not header["public"]:
        raise UserError(
            f"--public: the records of {path} are not marked public, and a forecast may read public records only: give a store "
            f"that was imported with `dpfed data import --public`, or '{PROCEDURAL}'. [proxy-not-public]"
        )
    if config.model.reads_text and header["kind"] != "image-text":
        raise UserError(
            f"--public: model.kind = '{config.model.kind}' reads captions, and the records of {path} have none: give captioned "
            f"records, or '{PROCEDURAL}'. [proxy-no-captions]"
        )
    if plan.bounding.method.public_records and config.public.path and local_path(config.public.path, "public.path") == path:
        raise UserError(
            f"--public: the records of {path} join every group as public ones (public.path), so they cannot replace the "
            f"private ones as well: give others, or '{PROCEDURAL}'. [proxy-joins-groups]"
        )
    count = known_count(DataConfig(source="store", path=str(path)), "record")
    assert count is not None  # it is a store on this machine
    least = LEAST_GROUPS * max(2, plan.bounding.group_size)
    if count < least:
        raise UserError(
            f"--public: {path} has {count:,} training records, and gradients are measured on at least {LEAST_GROUPS} groups of "
            f"{max(2, plan.bounding.group_size)}, so {least:,} records: give more, or '{PROCEDURAL}'. [proxy-few-records]"
        )
    return Proxy("store", path, count)
