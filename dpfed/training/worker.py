"""A data owner: turns its own records into a bounded sum, step by step."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines import Engine, GroupBatch
from dpfed.bounding.statistics import sum_of_statistics
from dpfed.data.public_records import PublicNegatives
from dpfed.data.sampling import PartitionRows, StepDraw, draw_step, participants_of
from dpfed.data.views.batches import ViewMaker
from dpfed.models.contract import temperature_of
from dpfed.models.parameters import TrainableVector
from dpfed.models.validation import validate
from dpfed.privacy.group_statistics import GroupStatistics
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness


def indices_of_rank(indices: np.ndarray, keys: np.ndarray, rank: int, world_size: int) -> np.ndarray:
    """The indices whose record belongs to one of several ranks: a function of each record's own key.

    Args:
        indices: ``(n,)`` indices to share out.
        keys: ``(N,)`` what decides, by index in the store: `dpfed.data.sampling.partition_keys`.
        rank: 0 .. world_size - 1.
        world_size: how many there are.
    """
    return indices[keys[indices] % np.uint64(world_size) == rank]


class Worker:
    """Holds private records; releases nothing but `BoundedSum`.

    Args:
        plan: the sampling rate, the groups and what is clipped.
        model: shared with the coordinator in one process, a replica elsewhere.
        engine: computes the sum of clipped gradients of `model`.
        views: makes the views of this worker's store.
        indices: ``(n,)`` of the store, this worker's training records, or `PartitionRows`, which compute them.
        keys: ``(n,)`` their record keys; of all rows of the store, where `indices` are `PartitionRows`.
        randomness: the workers' secret randomness.
        microbatch: records whose views are in memory at a time; one group is never divided.
        rank: the worker's number.
        groups: K_w, how many of the plan's K groups are this worker's; ``None``: all.
        world_size: among how many workers on the same records the K groups are divided; 1: these are this worker's alone.
        noise_shares: how many parties add the noise together, where owners add it (`PrivacyPlan.noise_of`).
        units: ``(n,)`` as `keys`, the keys of the records' units where the plan protects units, otherwise ``None``.
        public_negatives: the public records that join every group, where the method has any.

    Attributes:
        engine: as given, and so are `views`.
        views: of this worker's store.
        threshold: of the gradients' norms, which the coordinator tells before a step where the plan asks about one; public.

    Raises:
        ValueError: if the units or the public negatives are missing, or given, against the plan.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        model: nn.Module,
        engine: Engine,
        views: ViewMaker,
        indices: np.ndarray | PartitionRows,
        keys: np.ndarray,
        randomness: Randomness,
        microbatch: int,
        rank: int = 0,
        groups: int | None = None,
        world_size: int = 1,
        noise_shares: int = 1,
        units: np.ndarray | None = None,
        public_negatives: PublicNegatives | None = None,
    ) -> None:
        validate(model)
        temperature_of(model)
        bounding = plan.bounding
        if (plan.promise.unit == "user") != (units is not None):
            given = "not given" if units is None else "given"
            raise ValueError(f"the plan protects each {plan.promise.protected}, and units were {given}")
        public = 0 if public_negatives is None else public_negatives.count
        if bounding.options.get("public_records", 0) != public:
            raise ValueError(f"{public} public records join every group, against the plan's method '{bounding.method_name}'")
        partition = indices if isinstance(indices, PartitionRows) else None
        self._plan = plan
        self._bounding = bounding
        self._grid = plan.grid_of(noise_shares) if plan.private else None
        self._model = model
        self._vector = TrainableVector(model)
        self.engine = engine
        self.views = views
        self._prefetch_images = views.prefetch
        self._indices = None if isinstance(indices, PartitionRows) else indices
        self._keys = keys
        self._units = units
        self._participants = participants_of(plan, randomness, keys, units, partition)
        self._randomness = randomness
        self._rank = rank
        self._groups = plan.groups if groups is None else groups
        self._divided = (rank, world_size) if world_size > 1 else (0, 1)
        self._public_negatives = public_negatives
        self._microbatch = max(1, microbatch // (1 + public))
        self.threshold = bounding.clip_norm
        self._drawn_ahead: tuple[int, StepDraw] | None = None

    @property
    def asks_about_norms(self) -> bool:
        """Whether `threshold` matters."""
        return self._plan.statistics is not None

    def bounded_sum(self, step: int) -> BoundedSum:
        """One step: sample, group, make views, clip each group's gradient, add up.

        Args:
            step: training step; all randomness follows from it.

        Returns:
            The exact sum over this worker's groups: zeros if nothing was drawn, for an empty step is still a step.
        """
        draw = self.draw(step)
        total = self.engine.zeros()
        if self._grid is not None and self.engine.adds_whole_parts:
            total = total.long()
        torch.manual_seed(self._randomness.seed("model", step, self._rank))  # dropout and the like repeat on resume
        self._model.train()
        losses: list[Tensor] = []
        norms = self._add_groups(draw, step, total, losses)
        sensitivity = self._plan.sensitivity_of(step)
        if self._grid is None:
            return BoundedSum(total.float(), sensitivity, self._groups)
        total = total.long()
        if self._plan.statistics is not None:
            total = torch.cat([total, self._statistics(self._plan.statistics, norms, losses)])
        return BoundedSum(total, sensitivity, self._groups, unit=self._grid.unit)

    def _statistics(self, wanted: GroupStatistics, norms: list[Tensor], losses: list[Tensor]) -> Tensor:
        """What goes behind the sum of the gradients: the sum of the groups' statistics, int64."""
        assert self._grid is not None  # only a plan with privacy has statistics
        if not norms:
            return torch.zeros(len(wanted.names), dtype=torch.int64, device=self._vector.device)
        public = 0 if self._public_negatives is None else self._public_negatives.count
        every, of_groups = torch.cat(norms), torch.cat(losses, dim=1)
        unit, clip_norm = self._grid.unit, self._bounding.clip_norm
        return sum_of_statistics(wanted, every, of_groups, self.threshold, clip_norm, unit, public).to(every.device)

    @property
    def _clip(self) -> float | Clip:
        """How the groups of the next step are clipped, in grid steps: all rules give parts of R steps at most.

        C enters here, once: a number of the gradient is R / C steps.
        """
        if self._grid is None:
            return math.inf
        bound, steps = self._grid.radius, 1 / self._grid.unit
        if not self.engine.adds_whole_parts:
            # Cutting off what is behind the point of the sum moves neighbours by one step in each number; rounding, by less.
            bound /= 1 + 2 * math.sqrt(self._vector.numel) * self._grid.unit / self._plan.sensitivity
        if self._bounding.clipping == "automatic":
            return Clip(bound, math.inf, self._bounding.stability)
        if self._bounding.clipping == "adaptive":
            return Clip(bound, steps * self._bounding.clip_norm / self.threshold)
        return Clip(bound, steps)

    def _add_groups(self, draw: StepDraw, step: int, total: Tensor, losses: list[Tensor]) -> list[Tensor]:
        """Adds the clipped gradients of a draw's groups, a microbatch at a time; returns their norms before clipping."""
        clip, asked = self._clip, [losses] if self._plan.statistics else []
        norms: list[Tensor] = []
        ranges = draw.microbatches(self._microbatch)
        self._prefetch_views(draw, ranges, step)
        for first, end in ranges:
            offsets = (draw.offsets[first : end + 1] - draw.offsets[first]).tolist()
            views = self.views(draw.between(first, end), self._randomness, step, self._vector.device)
            if self._public_negatives and draw.keys is not None:
                keys = draw.keys[first:end]
                views, offsets = self._public_negatives.joined(
                    views, offsets, keys, self._randomness, step, self._vector.device
                )
            if end == len(draw):
                self._prefetch(step + 1)
            norms.append(self.engine.add_clipped(GroupBatch(views, offsets, step), clip, total, *asked))
        if not ranges:
            self._prefetch(step + 1)
        return norms

    def draw(self, step: int) -> StepDraw:
        """Whose records take part in a step, and in which groups: a function of key and step, which may have been made ahead.

        Args:
            step: training step.
        """
        if self._drawn_ahead is not None and self._drawn_ahead[0] == step:
            return self._drawn_ahead[1]
        groups = self._groups if self._divided == (0, 1) else self._plan.groups
        return draw_step(
            self._plan,
            self._randomness,
            step,
            self._indices,
            self._keys,
            groups,
            self._units,
            self._participants,
            *self._divided,
        )

    def _prefetch(self, step: int) -> None:
        """Lets the first images of the next step be read beside the last gradients, and while the sum is on its way."""
        if step >= self._plan.steps:
            return
        draw = self.draw(step)
        self._drawn_ahead = step, draw
        self._prefetch_views(draw, draw.microbatches(self._microbatch), step)

    def _prefetch_views(self, draw: StepDraw, ranges: list[tuple[int, int]], step: int) -> None:
        """Says whose images, and whose public negatives', will be asked for, in order."""
        self._prefetch_images([draw.between(*groups) for groups in ranges], self._randomness, step, self._vector.device)
        if self._public_negatives and draw.keys is not None:
            keys = [draw.keys[first:end] for first, end in ranges]
            self._public_negatives.prefetch(keys, self._randomness, step, self._vector.device)
