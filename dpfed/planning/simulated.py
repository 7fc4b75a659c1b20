"""Builds the parts of the private run, with public records instead of private ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfed.config import Config, DataConfig, EvaluationConfig
from dpfed.data.generated.procedural import procedural_store
from dpfed.data.generated.shapes import shapes_store
from dpfed.data.record_set import RecordSet
from dpfed.data.sampling import unit_keys
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.evaluation.tasks import tasks_of
from dpfed.planning.proxy import SHAPES, Proxy
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress, import_progress
from dpfed.runs.build import Parts, build
from dpfed.runs.resolution import resolve_defaults
from dpfed.training.learner import Partition
from dpfed.training.worker import Worker

_SEED = 2**32 - 3  # seed of generated records, so that they differ from those of a run or its public set
_HELD_OUT = 500  # generated held-out records


@dataclass(frozen=True)
class SimulatedRun:
    """The parts of a run over public records, under the private run's plan.

    Attributes:
        parts: Parts of the run; their store is the public one.
        indices: Indices in that store of the records that replace the private ones, shape ``(n,)``.
    """

    parts: Parts
    indices: np.ndarray

    @classmethod
    def of(
        cls, config: Config, plan: PrivacyPlan, stand: Proxy, records: int, progress: Progress, measured: bool = False
    ) -> SimulatedRun:
        """Opens the public records and assembles the run over them.

        Args:
            config: Configuration of the private run, before or after `dpfed.runs.resolution.resolve_defaults`.
            plan: Plan of the private run.
            stand: Public records that replace the private ones.
            records: Largest number of public training records to use.
            progress: Receiver of progress notes.
            measured: Whether the model is to be measured on held-out public records.

        Raises:
            UserError: If the run cannot be built over the public records, or if the model is to be measured and the records
                allow no measurement.
        """
        config = resolve_defaults(config)
        assert config.data.size is not None  # resolved
        store = _opened(stand, records, config.data.stores, config.data.size, progress)
        if plan.promise.unit == "user" and store.units is None:  # each public record counts as a unit of its own
            plan = plan.replace(unit="record", per_unit=1)
        config = _over(config, store, plan, measured)
        parts = build(config, Randomness.from_seed(0), progress, stand_in_plan=plan)
        return cls(parts, np.sort(store.smallest(store.within("train"), records)))

    @property
    def protected(self) -> int:
        """Number of public records in use; if the plan protects units, the number of their units."""
        units = unit_keys(self.parts.store, self.parts.config.privacy.unit)
        return len(self.indices) if units is None else len(np.unique(units[self.indices]))

    def worker(self, plan: PrivacyPlan, randomness: Randomness, groups: int) -> Worker:
        """Returns a worker that holds the public records.

        Args:
            plan: Plan with the sampling and the clipping rule.
            randomness: Randomness of the worker's draws.
            groups: Number of the worker's groups, out of the plan's K.
        """
        learner = self.parts.learner.replace(plan=plan)
        return learner.worker(randomness.for_ranks(), Partition(0, self.indices, groups))


def _opened(stand: Proxy, records: int, stores: str, size: int, progress: Progress) -> RecordSet:
    """Returns the store of the public records; generates the records if no store is given."""
    if stand.path is not None:
        return RecordStore.open(stand.path)
    if stand.source == SHAPES:
        return shapes_store(records, stores, test=_HELD_OUT, seed=_SEED)
    generating = import_progress(progress, "procedural images")
    return procedural_store(records, stores, size, test=_HELD_OUT, seed=_SEED, progress=generating)


def _over(config: Config, store: RecordSet, plan: PrivacyPlan, measured: bool) -> Config:
    """Returns the configuration of the same run over the records of `store`."""
    data = DataConfig(source="store", path=str(store.path), size=config.data.size, resize=config.data.resize)
    privacy = config.privacy.model_copy(update={"unit": plan.promise.unit, "per_unit": plan.sampling.per_unit})
    over = config.model_copy(update={"data": data, "privacy": privacy})
    evaluation = _measures(over, store) if measured else over.evaluation.model_copy(update={"split": "none"})
    return over.model_copy(update={"evaluation": evaluation})


def _measures(config: Config, store: RecordSet) -> EvaluationConfig:
    """Returns the evaluation on held-out public records, of the configured tasks or, if impossible, of all possible tasks."""
    splits = [split for split in (config.evaluation.split, "test", "validation") if split != "none"]
    split = next((split for split in splits if len(store.split(split))), None)
    if split is None:
        raise UserError(
            f"{store.path} has no held-out records to measure a rehearsal on: import the records again with `dpfed data import "
            "--validation N`, or take generated ones (--public procedural). [rehearsal-no-held-out]"
        )
    match = config.evaluation.match if store.units is not None else "record"
    asked = config.evaluation.model_copy(update={"split": split, "every": 0, "match": match})
    for tasks in (asked.tasks, ()):
        wanted = asked.model_copy(update={"tasks": tasks})
        try:
            possible = tasks_of(store, wanted, config.model)
        except UserError:  # these records may lack what a task of the private records reads
            continue
        if possible:
            return wanted
    raise UserError(
        f"nothing can be measured on {store.path}: its records have neither labels (k-NN, linear probe) nor captions that the "
        "model reads. Give other records (--public STORE), or take generated ones (--public procedural). [rehearsal-no-measure]"
    )
