"""Collects the parts of a training run: a model, records, a plan and a loss. They do not depend on where the steps run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpfed.bounding.engines import Engine
from dpfed.bounding.engines.loop import LoopEngine
from dpfed.data.public_records import PublicNegatives
from dpfed.data.record_set import RecordSet
from dpfed.data.sampling import PartitionRows, partition_keys, unit_keys
from dpfed.errors import UserError
from dpfed.features.training_views import TrainingViews
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.blocks import block_length
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.checkpoint import load_weights
from dpfed.training.coordinator import Coordinator
from dpfed.training.optimizers import OwnOptimizer
from dpfed.training.options import OptimizerConfig
from dpfed.training.post_processing import post_processors
from dpfed.training.private_metrics import PrivateMetrics
from dpfed.training.releases import Releases
from dpfed.training.worker import Worker

MakeEngine = Callable[[nn.Module, PrivacyPlan, Randomness, int], Engine]


def loop_over_groups(model: nn.Module, plan: PrivacyPlan, randomness: Randomness, rank: int) -> Engine:
    """Returns an engine that computes the InfoNCE loss one group after the other. It works for every model.

    Args:
        model: Model, on its device.
        plan: Plan of a method that clips the gradients of groups.
        randomness: Not used.
        rank: Not used.

    Raises:
        UserError: If the plan's method does not clip gradients of groups, but has an engine of its own.
    """
    if not plan.bounding.method.picks_engine:
        raise UserError(
            f"method '{plan.bounding.method_name}' needs its own engine: give Learner(engine=...) a function that makes it. "
            "[learner-engine]"
        )
    return LoopEngine(model)


@dataclass(frozen=True)
class Partition:
    """The part of a training run that one worker does.

    Attributes:
        rank: Number of the worker.
        indices: Indices in the store of the records from which the worker's groups are drawn, shape ``(n,)``; or
            `PartitionRows`, which compute them.
        groups: Number K_w of the worker's groups, out of the plan's K.
        world_size: Number of workers with the same records, among whom the K groups are divided; 1: the records belong
            to this worker only.
    """

    rank: int
    indices: np.ndarray | PartitionRows
    groups: int
    world_size: int = 1


@dataclass(frozen=True)
class SharedNoise:
    """Noise of a federation, of which each party adds a part.

    Attributes:
        parties: Number of parties that add the noise together (`PrivacyPlan.noise_of`).
        std: Standard deviation of the joint noise on each number of the sum; it may exceed the plan's. ``None``: the plan's.
    """

    parties: int = 1
    std: float | None = None


@dataclass(frozen=True)
class Learner:
    """The model of a training run, its records, its loss and its privacy plan.

    Attributes:
        plan: Privacy plan of the training.
        model: Model, on its device; `coordinator` updates it in place.
        records: Private records: a record store, or another `RecordSet`.
        views: Maker of the model's inputs.
        engine: Function ``(model, plan, randomness, rank) -> Engine``; the engine computes the loss. Default: InfoNCE, one
            group after the other.
        optimizer: Optimizer, schedule and post-processors for the noisy averages.
        own_optimizer: The user's own optimizer, used instead of the one that `optimizer` names.
        manual: Whether the user steps the optimizer (`Update`).
        microbatch: Number of records whose views are in memory at a time.
        public: Store of the public records that join every group, if the method has any.
        rank: Number of this process among those that share the work.
        world_size: Number of processes that share the work.
        noise: Number of parties that add the noise together, and the standard deviation of their joint noise.
        released_in_blocks: Whether a sum's digest and noise are made block by block. In a federation a sum is one block.
    """

    plan: PrivacyPlan
    model: nn.Module
    records: RecordSet
    views: TrainingViews
    engine: MakeEngine = loop_over_groups
    optimizer: OptimizerConfig = OptimizerConfig()
    own_optimizer: OwnOptimizer | None = None
    manual: bool = False
    microbatch: int = 1024
    public: RecordSet | None = None
    rank: int = 0
    world_size: int = 1
    noise: SharedNoise = SharedNoise()
    released_in_blocks: bool = True

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    @property
    def divides_groups(self) -> bool:
        """Returns whether all workers have the same records, and divide each step's groups among themselves.

        Then the groups, and their sum, are the same for any number of workers. If the result is false, the records are divided
        among the workers, for one of two reasons: every record is a group by itself, so the sum is the same anyway; or features
        are cached, so that only one worker computes the features of each record.
        """
        return not self.plan.bounding.method.singleton_groups and not self.views.cached

    @property
    def partition(self) -> Partition:
        """The part of the groups, and of the records, that this process has; `rank` and `world_size` determine it."""
        groups = self.plan.groups_of(self.rank, self.world_size)
        if self.divides_groups:
            return Partition(self.rank, PartitionRows(self.records, self.records.keys), groups, self.world_size)
        keys = partition_keys(self.records, self.plan.promise.unit)
        return Partition(self.rank, PartitionRows(self.records, keys, self.rank, self.world_size), groups)

    def worker(self, randomness: Randomness, partition: Partition | None = None, model: nn.Module | None = None) -> Worker:
        """Returns a worker, which holds private records.

        Args:
            randomness: The workers' secret randomness.
            partition: Records and groups of this worker; default: `Learner.partition`.
            model: Copy of the model to be trained; default: `Learner.model` itself.

        Raises:
            UserError: See `Worker`; also if `Learner.engine` raises it, such as `loop_over_groups`.
            ValueError: See `Worker`.
        """
        part, model = partition or self.partition, self.views.trained(model or self.model)
        keys, units = self.records.keys, unit_keys(self.records, self.plan.promise.unit)
        if not isinstance(part.indices, PartitionRows):
            keys, units = keys[part.indices], None if units is None else units[part.indices]
        return Worker(
            plan=self.plan,
            model=model,
            engine=self.engine(model, self.plan, randomness, part.rank),
            views=self.views.maker(self.model, self.records, part.indices),
            indices=part.indices,
            keys=keys,
            randomness=randomness,
            microbatch=self.microbatch,
            rank=part.rank,
            groups=part.groups,
            world_size=part.world_size,
            noise_parties=self.noise.parties,
            units=units,
            public_negatives=self._public_negatives(),
        )

    def coordinator(self, randomness: Randomness, ledger: Ledger, releases: Releases | None = None) -> Coordinator:
        """Returns the coordinator, which adds the noise, charges the ledger and updates `model`.

        Args:
            randomness: The coordinator's secret randomness.
            ledger: Ledger of this plan.
            releases: Store that keeps noisy sums until a checkpoint includes their effect.

        Raises:
            UserError: See `Coordinator`.
        """
        return Coordinator(
            plan=self.plan,
            model=self.model,
            config=self.optimizer,
            randomness=randomness,
            ledger=ledger,
            releases=releases,
            noise_std=self.noise.std,
            own_optimizer=self.own_optimizer,
            manual=self.manual,
        )

    def create_ledger(self, path: str | Path, marks: dict[str, bool] | None = None) -> Ledger:
        """Creates this training's ledger, to which a release is charged before anything that depends on it leaves the process.

        Args:
            path: Path of the file, which must not exist.
            marks: Flags of the training that the ledger's first line records.

        Raises:
            UserError: If the file exists, or the model has no trainable parameter.
        """
        size = TrainableVector(self.model).numel + self.plan.statistics_count
        block = block_length(size) if self.released_in_blocks else None
        # Copying a long sum from a GPU to the host would take longer than making its noise; on a CPU, SHA-256 is as fast.
        return Ledger.create(path, self.plan, marks, block, universal=block is not None and self.device.type == "cuda")

    def load_weights(self, checkpoint: Path) -> None:
        """Loads into the model those weights of a checkpoint that are measured and published.

        Raises:
            UserError: If the checkpoint is damaged, belongs to another model or to other post-processors, or needs frozen
                weights and the first checkpoint is gone or damaged.
        """
        private_metrics = [PrivateMetrics(self.plan)] if self.plan.statistics else []
        load_weights(checkpoint, self.model, [*private_metrics, *post_processors(self.optimizer, self.model)])

    def replace(self, **changes: Any) -> Learner:
        """Returns a copy of the learner with some attributes changed."""
        return dataclasses.replace(self, **changes)

    def _public_negatives(self) -> PublicNegatives | None:
        if self.public is None:
            return None
        rows = self.public.split("train")
        views = self.views.maker(self.model, self.public, rows)
        return PublicNegatives(views, rows, self.plan.bounding.options["public_records"])
