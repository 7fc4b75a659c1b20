"""Chooses public records that replace private ones: a forecast measures gradients on them, and a rehearsal trains on them.

Of the private records, only their number is used, which the plan makes public anyway. This module reads no private record. It
does not import torch, so that mistakes in a command are reported at once.
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
LEAST_GROUPS = 8  # fewest groups on which a gradient is measured


@dataclass(frozen=True)
class Proxy:
    """The public records that replace the private ones.

    Attributes:
        source: Source of the records: ``store``, or a generator, ``procedural`` or ``shapes``.
        path: Path of the store; ``None`` if the records are generated.
        count: Number of training records in the store; ``None`` if as many as needed are generated.
    """

    source: str
    path: Path | None = None
    count: int | None = None

    @property
    def title(self) -> str:
        """Description of the records, for people."""
        if self.path is not None:
            return str(self.path)
        return "generated captioned shapes" if self.source == SHAPES else "generated procedural images"

    def at_most(self, wanted: int) -> int:
        """Returns the number of available training records, at most `wanted`."""
        return wanted if self.count is None else min(wanted, self.count)


def declared_plan(config: Config, records: int | None, progress: Progress) -> PrivacyPlan:
    """Computes the plan of a private run from the number of its records alone.

    Args:
        config: Configuration of the private run.
        records: N, the number of training records (or units, if units are protected); ``None``: the number in the configuration
            or the store.
        progress: Receiver of notes about slow parts.

    Raises:
        UserError: If the plan is impossible, the method has no groups or no noise, the records are missing or unfit, or their
            number is only known after an import.
    """
    plan = sketch_of(config) if records is None else sketch_of(config, records)
    if not plan.private:
        raise UserError(
            "bounding.method = 'none' adds no noise, so there is nothing to forecast: set bounding.method = 'group', and "
            "privacy.epsilon. [forecast-plan-no-noise]"
        )
    if plan.bounding.method.whole_batch:
        raise UserError(
            f"bounding.method = '{plan.bounding.method_name}' contrasts the whole batch at once, but a forecast measures "
            "gradients of groups: set bounding.method = 'group' or 'public'. [forecast-plan-batch]"
        )
    refuse_impossible(config, opens=False)
    if records is None:
        records = known_count(config.data, config.privacy.unit)
    if records is None:
        raise UserError(
            f"the number of records of data.source = '{config.data.source}' is known only after an import: give the number of "
            "training records (or protected units), which becomes public, with --records N. [forecast-plan-records]"
        )
    sketch_of(config, records)
    progress.note(f"computing noise and epsilon for {records:,} records")
    plan = plan_of(records, config)
    plan.require_finite()
    return plan


def chosen(public: str | None, config: Config, plan: PrivacyPlan) -> Proxy:
    """Returns the public records that a user names, after those checks that need only a store's header and index.

    Args:
        public: Path of a record store, or ``procedural`` or ``shapes``; default: procedural images.
        config: Configuration of the private run.
        plan: Plan of the private run.

    Raises:
        UserError: If there is no store at the path, or if its records are not public, are of a kind that the model cannot read,
            are too few, or are the public records that the run's method already adds to each group.
    """
    if public in (None, PROCEDURAL, SHAPES):
        return Proxy(public or PROCEDURAL)
    path = local_path(public, "--public")
    header = read_layout(path).header
    if not header["public"]:
        raise UserError(
            f"--public: the records of {path} are not marked public, but a forecast may read only public records: give a store "
            f"that was imported with `dpfed data import --public`, or '{PROCEDURAL}'. [proxy-not-public]"
        )
    if config.model.reads_text and header["kind"] != "image-text":
        raise UserError(
            f"--public: model.kind = '{config.model.kind}' reads captions, but the records of {path} have none: give captioned "
            f"records, or '{PROCEDURAL}'. [proxy-no-captions]"
        )
    if plan.bounding.method.public_records and config.public.path and local_path(config.public.path, "public.path") == path:
        raise UserError(
            f"--public: the records of {path} join every group as public ones (public.path), so they cannot replace the "
            f"private ones as well: give others, or '{PROCEDURAL}'. [proxy-joins-groups]"
        )
    count = known_count(DataConfig(source="store", path=str(path)), "record")
    assert count is not None  # the number is known, as the store is on this machine
    least = LEAST_GROUPS * max(2, plan.bounding.group_size)
    if count < least:
        raise UserError(
            f"--public: {path} has {count:,} training records, but gradients are measured on at least {LEAST_GROUPS} groups of "
            f"{max(2, plan.bounding.group_size)}, so {least:,} records: give more, or '{PROCEDURAL}'. [proxy-few-records]"
        )
    return Proxy("store", path, count)
