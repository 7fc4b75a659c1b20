"""A rank's slice of every sum: noise, digests, kept release and update of its own blocks, when rank 0 asks for each.

A step with long sums keeps no rank waiting for the work of one. Each slice of the sum is reduced onto its owner. The owner adds
the noise of its own blocks, with keys that rank 0 hands to it alone, and keeps what comes out on disk. Rank 0 charges the
ledger with the hash over all blocks' digests. Only then do the owners update their slices of the parameters, and all ranks
gather them. gloo cannot reduce and scatter in one go, so each slice is a reduction of its own, all at the same time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpfed.cluster.link import Link
from dpfed.cluster.orders import Errand, Report, Trouble
from dpfed.config import OptimizerConfig
from dpfed.privacy.blocks import Blocks, add_to_blocks_
from dpfed.privacy.plan import PrivacyPlan
from dpfed.training.releases import Part, Releases
from dpfed.training.slices import SlicedVector, slices_of
from dpfed.training.update import SliceUpdate


class Slices:
    """This rank's slice, and the way to the others'; each method is called by all ranks at once. Also their `Exchange`.

    Args:
        link: to the other ranks.
        plan: noise, divisor and steps.
        model: this rank's, the same on all.
        config: of the optimizer.
        checksum: see `Exchange`.
        blocks: how sums are cut, on rank 0; ignored elsewhere.
        releases: where releases are kept, on rank 0; ignored elsewhere.

    Attributes:
        every: all ranks' slices.
        own: this rank's.
        update: takes the optimizer's step on it.
        most: blocks of the rank that has most.
        checksum: see `Exchange`.
    """

    def __init__(
        self,
        link: Link,
        plan: PrivacyPlan,
        model: nn.Module,
        config: OptimizerConfig,
        checksum: Callable[[], int],
        blocks: Blocks | None = None,
        releases: Path | None = None,
    ) -> None:
        told = {} if blocks is None else {"size": blocks.size, "length": blocks.length, "releases": str(releases)}
        told = json.loads(link.broadcast(json.dumps(told).encode()))
        self.blocks = Blocks(told["size"], told["length"])
        self._link, self._plan, self.checksum = link, plan, checksum
        self._releases = Releases(Path(told["releases"]))
        self.every = slices_of(self.blocks, link.size)
        self.own, self.most = self.every[link.rank], max(one.count for one in self.every)
        self.update = SliceUpdate(plan, model, config, self.own)
        self._vectors = [SlicedVector(model, one.place) for one in self.every]
        self._values: Tensor = torch.empty(0)  # of the own slice
        self._keep: Callable[[], None] = lambda: None

    def hand_out(self) -> None:
        """See `Exchange`: every rank has all parameters since the last update."""

    def bring_in(self, own: Tensor) -> Tensor:
        """See `Exchange`: the sum over all ranks, of this rank's slice."""
        parts = [own[one.place] for one in self.every]
        working = [dist.reduce(part, rank, async_op=True) for rank, part in enumerate(parts) if len(part)]
        for work in working:
            if work is not None:
                work.wait()
        self._values = parts[self._link.rank].clone()
        return self._values

    def hash(self) -> list[Report]:
        """The digests of every rank's own blocks without noise; all ranks' reports, on rank 0."""
        finite = bool(torch.isfinite(self._values).all())
        return self._reported(lambda: Report(self.blocks.digests(self._values)) if finite else Report([], Trouble.NOT_FINITE))

    def make_noisy(self, errands: list[Errand] | None = None) -> list[Report]:
        """Adds the noise of every rank's own blocks, once, and keeps it, if that is asked for.

        Args:
            errands: by rank, on rank 0.

        Returns:
            All ranks' reports, on rank 0.
        """
        packed = None if errands is None else [errand.pack(self.most) for errand in errands]
        errand = Errand.unpack(self._link.scatter(packed, Errand.length(self.most)), self.own.count)
        if errand.private:
            context = f"{self._plan.fingerprint}/{errand.clean}"
            add_to_blocks_(self.blocks, self._values, self._plan.noise, errand.keys, context, errand.step)
        digests = self.blocks.digests(self._values)
        part = Part(errand.step, errand.tag, self.own.first, self.own.end, self.blocks)
        self._keep = lambda: self._releases.save_part(part, self._values, digests)

        def report() -> Report:
            if errand.keep:
                self._keep()
            return Report(digests)

        return self._reported(report)

    def keep(self) -> list[Report]:
        """Keeps what `make_noisy` made on disk; all ranks' reports, on rank 0."""

        def report() -> Report:
            self._keep()
            return Report([])

        return self._reported(report)

    def take_up(self, noisy: Tensor | None = None) -> None:
        """Takes this rank's slice of a kept release ``(size,)`` that rank 0 gives."""
        whole = torch.empty(self.blocks.size, device=self.update.vector.device) if noisy is None else noisy.contiguous()
        dist.broadcast(whole, 0)
        self._values = whole[self.own.place].clone()

    def take_step(self, step: int, threshold: float | None = None) -> tuple[list[float], Tensor, bool] | None:
        """Updates all slices of the parameters, and gives every rank all of them.

        Args:
            step: 0 .. T - 1; its release is paid for.
            threshold: see `Coordinator.threshold`, on rank 0.

        Returns:
            On rank 0: squares of the gradient by block, statistics behind it, and whether all parameters are finite.
        """
        if self._plan.statistics is not None:
            threshold = self._link.share(threshold or 0.0)
        statistics = self.update.statistics(self._values)
        sums = self.update.take(step, self._values, threshold)
        self._gather_parameters()
        own = torch.zeros(1 + self.most, dtype=torch.float64)
        own[0], own[1 : 1 + len(sums)] = float(self.update.finite), torch.tensor(sums, dtype=torch.float64)
        if len(statistics):
            dist.reduce(statistics, 0)  # all ranks but one or two add zeros
        reports = self._link.report(own)
        if not reports:
            return None
        found = [value for report in reports for value in report[1:].tolist()]
        return found, statistics, all(bool(report[0]) for report in reports)

    def gather(self, own: Tensor) -> Tensor | None:
        """Brings every rank's numbers of its slice of the parameters to rank 0: there ``(P,)``, elsewhere nothing."""
        padded = own.new_zeros(self._width)
        padded[: len(own)] = own
        everyone = [torch.empty_like(padded) for _ in self.every] if self._link.rank == 0 else None
        dist.gather(padded, everyone, 0)
        return None if everyone is None else self._without_padding(everyone)

    def _gather_parameters(self) -> None:
        mine = self.update.vector.gather()
        padded = mine.new_zeros(self._width)
        padded[: len(mine)] = mine
        everyone = [torch.empty_like(padded) for _ in self.every]
        dist.all_gather(everyone, padded)
        with torch.no_grad():
            for rank, (vector, theirs) in enumerate(zip(self._vectors, everyone, strict=True)):
                if rank != self._link.rank:
                    for piece, value in zip(vector.parameters, vector.split(theirs[: vector.numel]), strict=True):
                        piece.copy_(value)

    @property
    def _width(self) -> int:
        """Numbers of the longest slice of the parameters."""
        return max(vector.numel for vector in self._vectors)

    def _without_padding(self, everyone: list[Tensor]) -> Tensor:
        return torch.cat([theirs[: vector.numel] for vector, theirs in zip(self._vectors, everyone, strict=True)])

    def _reported(self, act: Callable[[], Report]) -> list[Report]:
        """Does something, and tells rank 0 what came of it, also where the disk fails: the others must not wait for ever."""
        failed: OSError | None = None
        try:
            report = act()
        except OSError as error:
            failed, report = error, Report([], Trouble.DISK, error.errno or 0)
        packed = torch.frombuffer(bytearray(report.pack(self.most)), dtype=torch.uint8)
        everyone = self._link.report(packed)
        if failed is not None and self._link.rank == 0:
            raise failed
        return [Report.unpack(theirs.numpy().tobytes(), one.count) for one, theirs in zip(self.every, everyone, strict=False)]
