"""The private run's own parts, with public records in the place of private ones."""

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

_SEED = 2**32 - 3  # of generated records: others than those that a run, or its public set, is made of
_HELD_OUT = 500


@dataclass(frozen=True)
class SimulatedRun:
    """A run's parts under the private run's plan, over public records.

    Attributes:
        parts: of the run; their store is the public one.
        indices: ``(n,)`` of that store, the records that stand in.
    """

    parts: Parts
    indices: np.ndarray

    @classmethod
    def of(
        cls, config: Config, plan: PrivacyPlan, stand: Proxy, records: int, progress: Progress, measured: bool = False
    ) -> SimulatedRun:
        """Opens the public records and assembles the run over them.

        Args:
            config: of the private run; resolved or not.
            plan: of the private run.
            stand: the public records.
            records: at most so many stand in.
            progress: learns what is done.
            measured: the model is to be measured on held-out public records, as far as these allow it.

        Raises:
            UserError: whatever `build` refuses; for records that a model cannot be measured on.
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
        """How many records stand in, or units where these are protected."""
        units = unit_keys(self.parts.store, self.parts.config.privacy.unit)
        return len(self.indices) if units is None else len(np.unique(units[self.indices]))

    def worker(self, plan: PrivacyPlan, randomness: Randomness, groups: int) -> Worker:
        """A worker that holds the records that stand in, and so many groups.

        Args:
            plan: what is sampled, and what is clipped.
            randomness: of its draws.
            groups: how many of the plan's K groups are its own.
        """
        learner = self.parts.learner.replace(plan=plan)
        return learner.worker(randomness.for_ranks(), Partition(0, self.indices, groups))


def _opened(stand: Proxy, records: int, stores: str, size: int, progress: Progress) -> RecordSet:
    """The store of the records that stand in, generated if need be."""
    if stand.path is not None:
        return RecordStore.open(stand.path)
    if stand.source == SHAPES:
        return shapes_store(records, stores, test=_HELD_OUT, seed=_SEED)
    generating = import_progress(progress, "procedural images")
    return procedural_store(records, stores, size, test=_HELD_OUT, seed=_SEED, progress=generating)


def _over(config: Config, store: RecordSet, plan: PrivacyPlan, measured: bool) -> Config:
    """The configuration of the same run over other records."""
    data = DataConfig(source="store", path=str(store.path), size=config.data.size, resize=config.data.resize)
    privacy = config.privacy.model_copy(update={"unit": plan.promise.unit, "per_unit": plan.sampling.per_unit})
    over = config.model_copy(update={"data": data, "privacy": privacy})
    evaluation = _measures(over, store) if measured else over.evaluation.model_copy(update={"split": "none"})
    return over.model_copy(update={"evaluation": evaluation})


def _measures(config: Config, store: RecordSet) -> EvaluationConfig:
    """What can be measured on the held-out public records: what the configuration names, or else all that is possible."""
    splits = [split for split in (config.evaluation.split, "test", "validation") if split != "none"]
    split = next((split for split in splits if len(store.split(split))), None)
    if split is None:
        raise UserError(
            f"{store.path} has no held-out records to measure a rehearsal on: import it with --validation N, or take generated "
            "records. [rehearsal-no-held-out]"
        )
    match = config.evaluation.match if store.units is not None else "record"
    asked = config.evaluation.model_copy(update={"split": split, "every": 0, "match": match})
    for tasks in (asked.tasks, ()):
        wanted = asked.model_copy(update={"tasks": tasks})
        try:
            found = tasks_of(store, wanted, config.model)
        except UserError:  # these records do not allow what the private ones may
            continue
        if found:
            return wanted
    raise UserError(
        f"nothing can be measured on {store.path}: its records have neither labels (k-NN, linear probe) nor captions that the "
        "model reads. Give other records, or take generated ones. [rehearsal-no-measure]"
    )
