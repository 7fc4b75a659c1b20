"""What a run with many workers costs: time, bytes and dollars, by arithmetic from a handful of measured or assumed figures.

A step has three parts, one after the other. Every worker draws its records, reads them, makes their views and computes the
clipped gradients of its groups; all wait for the one that drew most. The sums go to the coordinator, and the new parameters
come back. In between the coordinator adds the noise and takes the optimizer's step. It writes its books while the next sum is
computed. Checkpoints, deaths of workers and evaluation are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.samplers import PoissonSampler

_PARAMETER_BYTES = 4  # of a parameter: float32
_SET_ASIDE = 0.15  # of the seconds in which a drawn record is grouped: to see that its group is another worker's


@dataclass(frozen=True)
class Machines:
    """The figures that an estimate rests on.

    What is zero by default is left out of the estimate.

    Args:
        throughput: records per second whose clipped group gradients one GPU computes.
        bandwidth: bytes per second over the slowest link between two workers.
        latency: seconds that a message takes beside its bytes.
        noise: seconds of the coordinator per million parameters, for noise and optimizer: all wait for them.
        bookkeeping: seconds of the coordinator per million parameters, for digest, kept release, ledger: beside the next sum.
        price: dollars per GPU and hour.
        gpus_per_node: GPUs that are rented together.
        keys: seconds in which a worker draws among a million records, for a block of steps in which each is drawn once.
        drawn: seconds in which a worker puts a million drawn records into groups.
        decoding: seconds in which a worker reads and decodes a record's image.
        ahead: whether it does so while gradients are computed.
        views: seconds in which a worker makes a record's views.
        each_step: seconds of the coordinator in a step, whatever is trained.

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
    keys: float = 0.0
    drawn: float = 0.0
    decoding: float = 0.0
    ahead: bool = True
    views: float = 0.0
    each_step: float = 0.0

    def __post_init__(self) -> None:
        for name in ("throughput", "bandwidth", "gpus_per_node"):
            _check(getattr(self, name) > 0, f"{name.replace('_', ' ')} must be positive, got {getattr(self, name)}")
        for name, value in vars(self).items():
            _check(not value < 0, f"{name.replace('_', ' ')} must not be negative, got {value}")
            _check(math.isfinite(value), f"{name.replace('_', ' ')} must be finite, got {value}")


@dataclass(frozen=True)
class Estimate:
    """What a run costs with a given number of workers.

    Attributes:
        workers: W, one GPU each.
        gpus: that are rented: whole nodes.
        largest_shard: records that the busiest worker of a step is expected to draw.
        sampling: seconds of a step in which the busiest worker draws; a block's are shared out over its steps.
        decoding: seconds of a step in which it waits for images.
        views: seconds of a step in which it makes views.
        gradients: seconds of a step in which the busiest worker computes.
        transport: seconds of a step for reduce and broadcast.
        coordinator: seconds of a step in which all wait for noise, optimizer, or bookkeeping that takes longer than a sum.
        bytes_per_step: what a worker's own sum and the new parameters add up to.
        hours: of the whole run.
        dollars: hours x GPUs x price.
        efficiency: seconds of one worker's step over the seconds that W workers spend on one; 1 is perfect.
    """

    workers: int
    gpus: int
    largest_shard: float
    sampling: float
    decoding: float
    views: float
    gradients: float
    transport: float
    coordinator: float
    bytes_per_step: int
    hours: float
    dollars: float
    efficiency: float

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.data + self.gradients + self.transport + self.coordinator

    @property
    def data(self) -> float:
        """Seconds of a step until the views of all its records are there."""
        return self.sampling + self.decoding + self.views

    def figures(self) -> dict[str, Any]:
        """All figures under their names, the step's seconds included."""
        return {**vars(self), "step": self.step}


def estimate(plan: PrivacyPlan, machines: Machines, parameters: int, workers: int) -> Estimate:
    """The cost of a run.

    Args:
        plan: batch, steps, how records are drawn, and what a drawn unit adds to the work.
        machines: speeds and price.
        parameters: P, what is trained.
        workers: W.

    Raises:
        UserError: if there are no parameters, more workers than groups, or no finite answer.
    """
    _check(parameters >= 1, f"parameters must be at least 1, got {parameters}")
    _check(
        1 <= workers <= plan.groups,
        f"workers must lie in 1..{plan.groups} (the groups of a step, of which each worker needs one), got {workers}",
    )
    step, alone = (_seconds(plan, machines, parameters, count) for count in (workers, 1))
    gpus = math.ceil(workers / machines.gpus_per_node) * machines.gpus_per_node
    hours = plan.steps * sum(step.values()) / 3600
    _check(math.isfinite(hours * gpus * machines.price), "no finite number can say its time or cost; give smaller figures")
    return Estimate(
        workers=workers,
        gpus=gpus,
        largest_shard=largest_shard(_records(plan) / workers, workers),
        **step,
        bytes_per_step=0 if workers == 1 else (_bytes_up(plan) + _PARAMETER_BYTES) * parameters,
        hours=hours,
        dollars=hours * gpus * machines.price,
        efficiency=sum(alone.values()) / (workers * sum(step.values())),
    )


def largest_shard(mean: float, workers: int) -> float:
    """Expected largest of W independent Poisson draws: ``sum over k >= 0 of 1 - P(X <= k)^W``.

    A record is drawn, and its group belongs to a worker, independently of all others, so a worker's records of a step are
    Poisson as long as these are a small part of all.

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
    """Reduce, then broadcast, along a ring in pieces: ``2 (W - 1) latency + size / bandwidth``; nothing for one worker.

    Args:
        size: bytes of both vectors, the sum and the parameters.
        workers: W, hence W - 1 hops, each of which delays the first piece.
        bandwidth: bytes per second over the slowest link, which every piece crosses once.
        latency: seconds per hop.
    """
    return 0.0 if workers == 1 else 2 * (workers - 1) * latency + size / bandwidth


def bottleneck(one: Estimate) -> str:
    """One sentence: which part of a step takes most of its time, and what would shorten it."""
    remedies = {
        "data": "drawing, reading and augmenting records: more workers, more cores, or images stored in their size help",
        "gradients": "computing gradients: more or faster GPUs help",
        "transport": "sending sums and parameters: a faster network, fewer workers or fewer trained parameters (adapters) help",
        "coordinator": "noise, optimizer and bookkeeping on the coordinator: train fewer parameters (adapters)",
    }
    part = max(remedies, key=lambda name: getattr(one, name))
    share = getattr(one, part) / one.step
    noun = "worker" if one.workers == 1 else "workers"
    return f"Bottleneck with {one.workers} {noun}: {share:.0%} of a step is {remedies[part]}."


def _seconds(plan: PrivacyPlan, machines: Machines, parameters: int, workers: int) -> dict[str, float]:
    """Of a step, by part."""
    records, millions = largest_shard(_records(plan) / workers, workers), parameters / 1e6
    gradients, decoding = records / machines.throughput, records * machines.decoding
    grouped = records + (_SET_ASIDE * (_records(plan) - records) if _divides_groups(plan) else 0.0)
    sampling = _drawing(plan, machines, workers) + machines.drawn * grouped / 1e6
    waiting = max(0.0, decoding - gradients) if machines.ahead else decoding
    size = (_bytes_up(plan) + _PARAMETER_BYTES) * parameters
    transport = transport_seconds(size, workers, machines.bandwidth, machines.latency)
    meanwhile = sampling + waiting + records * machines.views + gradients + transport
    books = max(0.0, machines.bookkeeping * millions - meanwhile)
    return {
        "sampling": sampling,
        "decoding": waiting,
        "views": records * machines.views,
        "gradients": gradients,
        "transport": transport,
        "coordinator": machines.each_step + (machines.noise * millions if plan.private else 0.0) + books,
    }


def _drawing(plan: PrivacyPlan, machines: Machines, workers: int) -> float:
    """Seconds of a step in which a worker finds out who takes part: a block's are shared out over its steps."""
    if not isinstance(plan.mechanism.sampler, PoissonSampler):
        return 0.0
    millions, block = plan.sampling.records / 1e6, plan.mechanism.sampler.block
    if not _divides_groups(plan):
        millions /= workers
    # Keys' figure is of a block in which each record is drawn once: its first gap, and one for each draw.
    once = 0.5 * (1 + plan.sampling.rate * block)
    return machines.keys * millions * once * math.ceil(plan.steps / block) / plan.steps


def _divides_groups(plan: PrivacyPlan) -> bool:
    """Whether workers divide the groups of a step, and so each draws among all records (`dpfed.runs.build`)."""
    return not plan.bounding.method.singleton_groups


def _bytes_up(plan: PrivacyPlan) -> int:
    """Of a number of the sum: whole numbers of 64 bits; float32 without privacy."""
    return 8 if plan.private else 4


def _records(plan: PrivacyPlan) -> int:
    """Records of a step; where units are protected, each is taken to bring as many as it may."""
    return plan.sampling.batch * plan.sampling.per_unit


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"impossible estimate: {message}. [cluster-estimate]")
