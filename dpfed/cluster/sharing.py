"""Rank 0's side of a step whose sum all ranks share: it bids each of them do its part, and puts together what they report."""

from __future__ import annotations

import os
import secrets

from torch import Tensor

from dpfed.cluster.link import Link
from dpfed.cluster.orders import Errand, Order, Report, Trouble
from dpfed.cluster.sliced_state import collect
from dpfed.cluster.slices import Slices
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector
from dpfed.training.coordinator import Coordinator
from dpfed.training.update import norm_of


class Sharing:
    """The coordinator's `Hands`.

    Args:
        link: to the other ranks, which obey orders.
        slices: this rank's.
        vector: of the model.
        coordinator: whose secret the noise follows from.
    """

    def __init__(self, link: Link, slices: Slices, vector: TrainableVector, coordinator: Coordinator) -> None:
        self._link, self._slices, self._vector, self._coordinator = link, slices, vector, coordinator

    @property
    def numel(self) -> int:
        """See `Hands`."""
        return self._slices.own.numel

    def make_noisy(self, step: int, own: Tensor, private: bool, keep: bool) -> str:
        """See `Hands`. Each rank gets the keys of its own blocks, and of no others."""
        noise, tag = self._coordinator.noise, secrets.token_hex(8)
        self._link.order(Order.HASH, step)
        clean = self._joined(step, self._slices.hash())
        errands = [
            Errand(step, private, keep, tag, clean, noise.keys(step, one.first, one.end) if private else [])
            for one in self._slices.every
        ]
        self._link.order(Order.NOISE, step)
        return self._joined(step, self._slices.make_noisy(errands))

    def keep(self, step: int) -> None:
        """See `Hands`."""
        self._link.order(Order.KEEP, step)
        self._require(step, self._slices.keep())

    def take_up(self, step: int, noisy: Tensor) -> None:
        """See `Hands`."""
        self._link.order(Order.REPEAT, step)
        self._slices.take_up(noisy)

    def update(self, step: int, threshold: float | None) -> tuple[float, Tensor, bool]:
        """See `Hands`."""
        self._link.order(Order.UPDATE, step)
        told = self._slices.take_step(step, threshold)
        assert told is not None  # on rank 0
        sums, statistics, finite = told
        return norm_of(sums), statistics, finite

    def collect_state(self) -> None:
        """See `Hands`."""
        self._link.order(Order.STATE)
        collect(self._link, self._slices, self._vector, self._coordinator)

    def _joined(self, step: int, reports: list[Report]) -> str:
        """The digest over all blocks that all ranks report."""
        self._require(step, reports)
        return self._slices.blocks.joined([digest for report in reports for digest in report.digests])

    def _require(self, step: int, reports: list[Report]) -> None:
        for rank, report in enumerate(reports):
            if report.trouble is Trouble.NOT_FINITE:
                raise UserError(f"step {step}: an owner sent a sum that is not finite; it was not used.")
            if report.trouble is Trouble.DISK:
                raise UserError(
                    f"step {step}: worker {rank} cannot keep its part of the release ({os.strerror(report.number)}). What was "
                    "spent is on record, and no step is lost: mend that, and resume the run."
                )
