"""The worker: turns the private records that it holds into a bounded sum, step by step."""

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
    """Returns the indices of the records that belong to one of several ranks. A record's rank follows from its key alone.

    Args:
        indices: Indices to divide among the ranks, shape ``(n,)``.
        keys: Partition keys of all records by index in the store, uint64 ``(N,)``; see `dpfed.data.sampling.partition_keys`.
        rank: Rank, 0 .. world_size - 1.
        world_size: Number of ranks.
    """
    return indices[keys[indices] % np.uint64(world_size) == rank]


class Worker:
    """The holder of private records. It hands out nothing but a `BoundedSum` for each step.

    Args:
        plan: Plan with the sampling rate, the groups and the clipping rule.
        model: Model: the coordinator's own if both are in one process, otherwise a replica of it.
        engine: Engine that computes the sum of clipped gradients of `model`.
        views: Maker of the views of this worker's store.
        indices: Indices in the store of this worker's training records, shape ``(n,)``; or `PartitionRows`, which compute them.
        keys: Record keys of `indices`, shape ``(n,)``; if `indices` are `PartitionRows`, the keys of all rows of the store.
        randomness: The workers' secret randomness.
        microbatch: Number of records, public ones included, whose views are in memory at a time; a group is never divided.
        rank: Number of the worker.
        groups: Number K_w of this worker's groups, out of the plan's K; ``None``: all.
        world_size: Number of workers on the same records among whom the K groups are divided; 1: the records belong to this
            worker only.
        noise_parties: Number of parties that add the noise together, if the sites add it (`PrivacyPlan.noise_of`).
        units: Keys of the records' units, in the order of `keys`, if the plan protects units; otherwise ``None``.
        public_negatives: Public records that are added to every group, if the method uses them.

    Attributes:
        engine: The argument `engine`.
        views: The argument `views`.
        threshold: Public L2 norm with which the worker compares the norm of each group's gradient, and to which adaptive
            clipping clips the gradients. If the plan releases statistics, the coordinator sets it before each step.

    Raises:
        ValueError: If units or public negatives are missing although the plan needs them, or are given although the plan
            does not use them; or if workers divide the groups, and the engine's sums are not exact.
        UserError: If a layer of the model mixes records, or the model has no temperature or no trainable parameter.
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
        noise_parties: int = 1,
        units: np.ndarray | None = None,
        public_negatives: PublicNegatives | None = None,
    ) -> None:
        validate(model)
        temperature_of(model)
        bounding = plan.bounding
        if (plan.promise.unit == "user") != (units is not None):
            given = "not given" if units is None else "given"
            raise ValueError(f"the plan protects each {plan.promise.protected}, and units were {given}")
        if world_size > 1 and plan.private and not engine.adds_whole_parts:
            raise ValueError(f"{type(engine).__name__} rounds a worker's sum, and several workers need exact sums")
        public = 0 if public_negatives is None else public_negatives.count
        if bounding.options.get("public_records", 0) != public:
            wanted = bounding.options.get("public_records", 0)
            raise ValueError(f"expected {wanted} public records for each group, as the plan states, got {public}")
        partition = indices if isinstance(indices, PartitionRows) else None
        self._plan = plan
        self._bounding = bounding
        self._grid = plan.grid_of(noise_parties) if plan.private else None
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
        self._made_ahead: tuple[int, dict[str, Tensor]] | None = None  # a step, and the views of its first microbatch

    @property
    def asks_about_norms(self) -> bool:
        """Returns whether `threshold` has an effect, that is, whether the plan releases statistics of the groups."""
        return self._plan.statistics is not None

    def bounded_sum(self, step: int) -> BoundedSum:
        """Samples records, groups them, makes their views, clips each group's gradient, and adds the clipped gradients up.

        Args:
            step: Training step; the step's number and the workers' secret determine all randomness.

        Returns:
            The sum over this worker's groups: int64 numbers of grid steps, and after them the groups' statistics if the plan
            releases any; float32 numbers if the plan adds no noise. If no record was sampled, the sum is zero: an empty step
            still counts as a step.
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
        """Returns the sum of the groups' statistics, int64, which is appended to the sum of the gradients."""
        assert self._grid is not None  # only a plan with privacy has statistics
        if not norms:
            return torch.zeros(len(wanted.names), dtype=torch.int64, device=self._vector.device)
        public = 0 if self._public_negatives is None else self._public_negatives.count
        every, of_groups = torch.cat(norms), torch.cat(losses, dim=1)
        unit, clip_norm = self._grid.unit, self._bounding.clip_norm
        return sum_of_statistics(wanted, every, of_groups, self.threshold, clip_norm, unit, public).to(every.device)

    @property
    def _clip(self) -> float | Clip:
        """The clipping rule for the groups of the next step; infinity, which clips nothing, if the plan adds no noise.

        Clipped gradients are in grid steps, with an L2 norm of at most the grid's radius R. With fixed clipping to norm C, a
        number 1 in a gradient that needs no clipping becomes R / C grid steps.
        """
        if self._grid is None:
            return math.inf
        bound, steps = self._grid.radius, 1 / self._grid.unit
        if not self.engine.adds_whole_parts:
            # Truncating the sum to whole grid steps moves neighbours apart by one grid step in each number; rounding, by less.
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
            views = self._views_of(draw.between(first, end), step)
            if self._public_negatives and draw.keys is not None:
                keys = draw.keys[first:end]
                views, offsets = self._public_negatives.joined(
                    views, offsets, keys, self._randomness, step, self._vector.device
                )
            is_last, beside = end == len(draw), _computes_beside_the_host(self._vector.device)
            if is_last and not beside:
                self._prefetch(step + 1)
            norms.append(self.engine.add_clipped(GroupBatch(views, offsets, step), clip, total, *asked))
            if is_last and beside:
                self._prefetch(step + 1, and_make=True)
        if not ranges:
            self._prefetch(step + 1)
        return norms

    def draw(self, step: int) -> StepDraw:
        """Returns the sampled records of a step, in groups. Secret and step determine them, so they may be computed ahead.

        Args:
            step: Training step.
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

    def _views_of(self, records: np.ndarray, step: int) -> dict[str, Tensor]:
        """Returns the views of a step's next microbatch; `_prefetch` may have made the views of the first one already."""
        ahead, self._made_ahead = self._made_ahead, None
        if ahead is not None and ahead[0] == step:
            return ahead[1]
        return self.views(records, self._randomness, step, self._vector.device)

    def _prefetch(self, step: int, and_make: bool = False) -> None:
        """Draws the next step's records and starts reading its first images, during this step's last gradients and transfer.

        Args:
            step: The next step.
            and_make: Whether the views of its first microbatch are made, too. A GPU makes them after the pass that it is
                computing.
        """
        if step >= self._plan.steps:
            return
        draw = self.draw(step)
        self._drawn_ahead = step, draw
        ranges = draw.microbatches(self._microbatch)
        self._prefetch_views(draw, ranges, step)
        if and_make and ranges:
            self._made_ahead = step, self._views_of(draw.between(*ranges[0]), step)

    def _prefetch_views(self, draw: StepDraw, ranges: list[tuple[int, int]], step: int) -> None:
        """Announces, in order, the records and public negatives whose images will be needed."""
        self._prefetch_images([draw.between(*groups) for groups in ranges], self._randomness, step, self._vector.device)
        if self._public_negatives and draw.keys is not None:
            keys = [draw.keys[first:end] for first, end in ranges]
            self._public_negatives.prefetch(keys, self._randomness, step, self._vector.device)


def _computes_beside_the_host(device: torch.device) -> bool:
    """Returns whether the host can draw the next step while the device computes."""
    return device.type == "cuda"
