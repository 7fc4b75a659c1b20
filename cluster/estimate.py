"""What a sharded run costs: time, bytes and dollars, by arithmetic from a handful of measured or assumed figures.

A step has three parts, one after the other: every worker computes the clipped gradients of its own groups, and all wait for the
one that drew most records; the sums go to the coordinator and the new parameters come back; in between the coordinator adds the
noise, writes its books and takes the optimizer step. Decoding, evaluation and checkpoints are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Machines:
    """The figures that an estimate rests on.

    Args:
        throughput: records per second whose clipped group gradients one GPU computes.
        bandwidth: bytes per second over the slowest link between two workers.
        latency: seconds that a message takes beside its bytes.
        noise: seconds of the coordinator per million parameters, for the noise.
        bookkeeping: seconds of the coordinator per million parameters, for digests, kept release, ledger and optimizer.
        price: dollars per GPU and hour.
        gpus_per_node: GPUs that are rented together.

    Raises:
        UserError: if a figure is impossible.
    """

    throughput: float
    bandwidth: float
    latency: float
    noise: float
    bookkeeping: float
    price: float
    gpus_per_node: int = 1

    def __post_init__(self) -> None:
        for name in ("throughput", "bandwidth", "gpus_per_node"):
            _check(getattr(self, name) > 0, f"{name.replace('_', ' ')} must be positive, got {getattr(self, name)}")
        for name in ("latency", "noise", "bookkeeping", "price"):
            _check(getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}")
        _check(all(map(math.isfinite, vars(self).values())), f"all figures must be finite, got {vars(self)}")


@dataclass(frozen=True)
class Estimate:
    """What a run costs with a given number of workers.

    Attributes:
        workers: W, one GPU each.
        gpus: paid for: whole nodes.
        largest_shard: records that the busiest worker of a step is expected to draw.
        gradients: seconds of a step in which the busiest worker computes.
        transport: seconds of a step for reduce and broadcast.
        coordinator: seconds of a step for noise, bookkeeping and optimizer.
        bytes_per_step: what a worker's own sum and the new parameters add up to.
        bytes_per_run: the same over all steps.
        hours: of the whole run.
        dollars: hours x GPUs x price.
        efficiency: seconds of one worker's step over the seconds that W workers spend on one; 1 is perfect.
    """

    workers: int
    gpus: int
    largest_shard: float
    gradients: float
    transport: float
    coordinator: float
    bytes_per_step: int
    bytes_per_run: int
    hours: float
    dollars: float
    efficiency: float

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.gradients + self.transport + self.coordinator

    def figures(self) -> dict[str, Any]:
        """All figures under their names, the step's seconds included."""
        return {**vars(self), "step": self.step}


def estimate(plan: PrivacyPlan, machines: Machines, parameters: int, workers: int) -> Estimate:
    """The cost of a run.

    Args:
        plan: batch, steps and what a drawn unit adds to the work.
        machines: speeds and price.
        parameters: P, what is trained.
        workers: W.

    Raises:
        UserError: if there are no parameters, or more workers than groups.
    """
    _check(parameters >= 1, f"parameters must be at least 1, got {parameters}")
    _check(
        1 <= workers <= plan.groups,
        f"workers must lie in 1..{plan.groups} (the groups of a step, of which each worker needs one), got {workers}",
    )
    step = _seconds(plan, machines, parameters, workers)
    alone = _seconds(plan, machines, parameters, 1)
    payload = 0 if workers == 1 else 2 * _FLOAT_BYTES * parameters
    gpus = math.ceil(workers / machines.gpus_per_node) * machines.gpus_per_node
    hours = plan.steps * sum(step) / 3600
    return Estimate(
        workers=workers,
        gpus=gpus,
        largest_shard=largest_shard(_records(plan) / workers, workers),
        gradients=step[0],
        transport=step[1],
        coordinator=step[2],
        bytes_per_step=payload,
        bytes_per_run=payload * plan.steps,
        hours=hours,
        dollars=hours * gpus * machines.price,
        efficiency=sum(alone) / (workers * sum(step)),
    )


def largest_shard(mean: float, workers: int) -> float:
    """Expected largest of W independent Poisson draws: ``sum over k >= 0 of 1 - P(X <= k)^W``.

    A record is drawn, and belongs to a worker, independently of all others, so a worker's records of a step are Poisson as long
    as it holds a small part of them.

    Args:
        mean: B/W, records that a worker expects to draw.
        workers: W.
    """
    if workers == 1:
        return mean
    k = np.arange(1, math.ceil(mean + 12 * math.sqrt(mean) + 40))
    log_probability = np.concatenate([[0.0], np.cumsum(np.log(mean / k))]) - mean  # of 0, 1, 2, ... records
    at_most = np.cumsum(np.exp(log_probability)).clip(max=1.0)
    return float(np.sum(1.0 - at_most**workers))


def transport_seconds(size: int, workers: int, bandwidth: float, latency: float) -> float:
    """Reduce, then broadcast, along a ring in pieces: ``2 ((W - 1) latency + size / bandwidth)``; nothing for one worker.

    Args:
        size: bytes of the vector, the same both ways.
        workers: W, hence W - 1 hops, each of which delays the first piece.
        bandwidth: bytes per second over the slowest link, which every piece crosses once.
        latency: seconds per hop.
    """
    return 0.0 if workers == 1 else 2 * ((workers - 1) * latency + size / bandwidth)


def bottleneck(one: Estimate) -> str:
    """One sentence: which part of a step takes most of its time, and what would shorten it."""
    remedies = {
        "gradients": "computing gradients: more or faster GPUs help",
        "transport": "sending sums and parameters: a faster network, fewer workers or fewer trained parameters (adapters) help",
        "coordinator": "noise and bookkeeping on the coordinator, which no number of workers shortens: train fewer parameters",
    }
    part = max(remedies, key=lambda name: getattr(one, name))
    share = getattr(one, part) / one.step
    noun = "worker" if one.workers == 1 else "workers"
    return f"Bottleneck with {one.workers} {noun}: {share:.0%} of a step is {remedies[part]}."


def _seconds(plan: PrivacyPlan, machines: Machines, parameters: int, workers: int) -> tuple[float, float, float]:
    """Gradients, transport, coordinator."""
    per_million = machines.bookkeeping + (machines.noise if plan.private else 0.0)
    return (
        largest_shard(_records(plan) / workers, workers) / machines.throughput,
        transport_seconds(_FLOAT_BYTES * parameters, workers, machines.bandwidth, machines.latency),
        per_million * parameters / 1e6,
    )


def _records(plan: PrivacyPlan) -> int:
    """Records of a step; where units are protected, each is taken to bring as many as it may."""
    return plan.batch * plan.per_unit


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"impossible estimate: {message}.")
