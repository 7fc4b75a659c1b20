"""A model, records, a plan and a loss: what a training consists of, whoever makes the parts and wherever its steps run."""

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
    """One group after the other, by InfoNCE: fits every model.

    Args:
        model: on its device.
        plan: of a method that clips the gradients of groups.
        randomness: is not needed.
        rank: is not needed.

    Raises:
        UserError: for another method.
    """
    if not plan.bounding.method.picks_engine:
        raise UserError(f"method '{plan.bounding.method_name}' has an engine of its own: give `engine`. [learner-engine]")
    return LoopEngine(model)


@dataclass(frozen=True)
class Partition:
    """What of a training is one worker's.

    Attributes:
        rank: the worker's number.
        indices: ``(n,)`` of the store, records from which its groups are drawn, or which rows of the store these are.
        groups: K_w, its part of the K groups.
        world_size: among how many workers with the same records the K groups are divided; 1: its records are its own.
    """

    rank: int
    indices: np.ndarray | PartitionRows
    groups: int
    world_size: int = 1


@dataclass(frozen=True)
class SharedNoise:
    """The noise of a federation whose parties add it among themselves.

    Attributes:
        parties: how many add it together (`PrivacyPlan.noise_of`).
        std: on each number of their sum, which may be more than the plan's; ``None``: as planned.
    """

    parties: int = 1
    std: float | None = None


@dataclass(frozen=True)
class Learner:
    """What is trained, on which records, by which loss, and what is promised.

    Attributes:
        plan: what is promised.
        model: on its device; `coordinator` updates it in place.
        records: a store, or others.
        views: makes what the model reads.
        engine: a function ``(model, plan, randomness, rank) -> Engine``, which knows the loss. Default: InfoNCE, one group
            after the other.
        optimizer: what is done with noisy averages.
        own_optimizer: an optimizer of the user's own, in the place of the one that is named there.
        manual: whether the user steps the optimizer (`Update`).
        microbatch: records whose views are in memory at a time.
        public: the store of public records that join every group, where the method has any.
        rank: which of the processes that share the work this is.
        world_size: how many there are.
        noise: of parties that add it among themselves.
        released_in_blocks: whether a sum's digest and noise are made block by block. Those of a federation are one block.
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
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def divides_groups(self) -> bool:
        """Whether workers with the same records divide the groups of a step: then the groups, and their sum, are the same for
        any number of workers. Otherwise each worker has records of its own. Where every record makes a group, that gives the
        same sum; where features are computed once, one worker computes each record's."""
        return not self.plan.bounding.method.singleton_groups and not self.views.cached

    @property
    def partition(self) -> Partition:
        """This process's part of the groups, and of the records, by `rank` and `world_size`."""
        groups = self.plan.groups_of(self.rank, self.world_size)
        if self.divides_groups:
            return Partition(self.rank, PartitionRows(self.records, self.records.keys), groups, self.world_size)
        keys = partition_keys(self.records, self.plan.promise.unit)
        return Partition(self.rank, PartitionRows(self.records, keys, self.rank, self.world_size), groups)

    def worker(self, randomness: Randomness, partition: Partition | None = None, model: nn.Module | None = None) -> Worker:
        """A worker, which holds private records.

        Args:
            randomness: the workers'.
            partition: what is this worker's; default: `partition`.
            model: to be trained, if not `model` itself but a copy of it.
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
            noise_shares=self.noise.parties,
            units=units,
            public_negatives=self._public_negatives(),
        )

    def coordinator(self, randomness: Randomness, ledger: Ledger, releases: Releases | None = None) -> Coordinator:
        """The coordinator, which adds the noise, pays and updates `model`.

        Args:
            randomness: the coordinator's.
            ledger: of this plan.
            releases: keeps noisy sums until a checkpoint takes them in.
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
        """A ledger for this training: what it spends is written there before anything leaves.

        Args:
            path: of the file, which must not be there.
            marks: what else the ledger says of the training from its first line on.
        """
        size = TrainableVector(self.model).numel + self.plan.statistics_count
        block = block_length(size) if self.released_in_blocks else None
        # A long sum on a GPU would take longer to get to the host than its noise takes; on a CPU, SHA-256 is as fast.
        return Ledger.create(path, self.plan, marks, block, universal=block is not None and self.device.type == "cuda")

    def load_weights(self, checkpoint: Path) -> None:
        """Gives the model the weights of a checkpoint that are measured and published.

        Raises:
            UserError: if the checkpoint is damaged or belongs to another model.
        """
        private_metrics = [PrivateMetrics(self.plan)] if self.plan.statistics else []
        load_weights(checkpoint, self.model, [*private_metrics, *post_processors(self.optimizer, self.model)])

    def replace(self, **changes: Any) -> Learner:
        """A learner with other attributes."""
        return dataclasses.replace(self, **changes)

    def _public_negatives(self) -> PublicNegatives | None:
        if self.public is None:
            return None
        rows = self.public.split("train")
        views = self.views.maker(self.model, self.public, rows)
        return PublicNegatives(views, rows, self.plan.bounding.options["public_records"])
