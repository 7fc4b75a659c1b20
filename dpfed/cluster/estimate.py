"""Estimate of a run's time, bytes and dollars with many workers, computed from a few measured or assumed figures.

A step has three parts, one after the other. First, every worker draws its records, reads them, makes their views and computes
the clipped gradients of its groups. All workers wait for the worker that has most records. Second, the sums go to the
coordinator, which adds the noise and takes the optimizer's step. Third, the new parameters go to the workers. The coordinator
computes the digest of a release while the next sum is computed. About every ten seconds, the coordinator makes a commit: it
writes the state of the training, and charges all steps since the last commit. All workers wait for a commit. Checkpoints,
failures of workers and evaluation are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpfed.data.sampling import dealt
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.samplers import PoissonSampler

_PARAMETER_BYTES = 4  # bytes of a parameter: float32
_DRAWS, _MOST_GROUPS = 16, 1 << 20  # draws whose mean is taken, and the largest number of groups that are drawn
_BETWEEN_COMMITS = 10.0  # seconds, about (`dpfed.runs.commit_pace`)
_SET_ASIDE = 0.15  # cost of skipping a drawn record of another worker's group, as a fraction of the cost of grouping a record


@dataclass(frozen=True)
class Machines:
    """Measured or assumed figures of the machines, from which costs are estimated.

    Where a time or the price is zero, the estimate leaves it out.

    Args:
        throughput: Records per second that one GPU processes when it computes clipped gradients of groups.
        bandwidth: Bytes per second over the slowest link between two workers.
        latency: Seconds of a message in addition to the time for its bytes.
        noise: Seconds of the coordinator per million parameters, for noise and optimizer. All workers wait meanwhile.
        bookkeeping: Seconds of the coordinator per million parameters for the digest of a release. The workers compute the next
            sum meanwhile.
        price: Dollars per GPU and hour.
        gpus_per_node: Number of GPUs that are rented together.
        keys: Seconds in which a worker decides, for a million records, in which steps of a block each record is drawn. A block
            is a number of steps whose draws are made together; here it has so many steps that each record is drawn once, on
            average.
        drawn: Seconds in which a worker assigns a million drawn records to groups.
        decoding: Seconds that a worker needs to read and decode a record's image.
        ahead: Whether images are read and decoded, and the records of the next step drawn, while gradients are computed.
        views: Seconds that a worker needs to make a record's views.
        each_step: Seconds of the coordinator per step, independent of the number of parameters.
        commit: Seconds of the coordinator per million parameters for a commit, for which all workers wait.

    Raises:
        UserError: If a figure is negative, not finite, or zero where it must be positive.
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
    commit: float = 0.0

    def __post_init__(self) -> None:
        for name in ("throughput", "bandwidth", "gpus_per_node"):
            _check(getattr(self, name) > 0, f"{name.replace('_', ' ')} must be positive, got {getattr(self, name)}")
        for name, value in vars(self).items():
            _check(not value < 0, f"{name.replace('_', ' ')} must not be negative, got {value}")
            _check(math.isfinite(value), f"{name.replace('_', ' ')} must be finite, got {value}")


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a run with a given number of workers.

    Attributes:
        workers: W, the number of workers, one GPU each.
        gpus: Number of rented GPUs, in whole nodes.
        largest_shard: Expected number of records of the busiest worker in a step.
        sampling: Seconds of a step in which the busiest worker waits for draws. Draws of a block of steps are made together,
            and their time is divided among these steps.
        decoding: Seconds of a step in which the busiest worker waits for images.
        views: Seconds of a step in which the busiest worker makes views.
        gradients: Seconds of a step in which the busiest worker computes gradients.
        transport: Seconds of a step for reduce and broadcast.
        coordinator: Seconds of a step in which all workers wait for noise, optimizer, commit, or a digest that takes longer
            than a sum. The time of a commit is divided among the steps that it charges.
        bytes_per_step: Bytes of a worker's own sum and of the new parameters together; 0 with one worker.
        hours: Hours of the whole run.
        dollars: Dollars of the whole run: hours x GPUs x price.
        efficiency: Seconds of a step with one worker, divided by W times the seconds of a step with W workers; 1 is perfect.
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
        """Seconds of a step in which the busiest worker waits for draws or images, or makes views."""
        return self.sampling + self.decoding + self.views

    def figures(self) -> dict[str, Any]:
        """Returns all figures by name, including the seconds of a step."""
        return {**vars(self), "step": self.step}


def estimate(plan: PrivacyPlan, machines: Machines, parameters: int, workers: int, cached: bool = False) -> Estimate:
    """Estimates the cost of a run.

    Args:
        plan: Plan of the run: batch, steps, sampling, and records per unit.
        machines: Speeds and price of the machines.
        parameters: P, the number of trained parameters.
        workers: W, the number of workers.
        cached: Whether features of frozen towers are computed once and cached. Then no step reads images or makes views.

    Raises:
        UserError: If there are no parameters, there is no worker or there are more workers than groups, or the time or the cost
            is not finite.
    """
    _check(parameters >= 1, f"parameters must be at least 1, got {parameters}")
    _check(
        1 <= workers <= plan.groups,
        f"workers must lie in 1..{plan.groups} (the groups of a step, of which each worker needs one), got {workers}",
    )
    if cached:
        machines = replace(machines, decoding=0.0, views=0.0)
    divides = not cached and not plan.bounding.method.singleton_groups  # as `Learner.divides_groups` does
    step, alone = (_seconds(plan, machines, parameters, count, divides) for count in (workers, 1))
    gpus = math.ceil(workers / machines.gpus_per_node) * machines.gpus_per_node
    hours = plan.steps * sum(step.values()) / 3600
    _check(math.isfinite(hours * gpus * machines.price), "the run's time or cost is not a finite number; check the figures")
    return Estimate(
        workers=workers,
        gpus=gpus,
        largest_shard=_of_the_busiest(plan, workers, divides),
        **step,
        bytes_per_step=0 if workers == 1 else (_bytes_up(plan) + _PARAMETER_BYTES) * parameters,
        hours=hours,
        dollars=hours * gpus * machines.price,
        efficiency=sum(alone.values()) / (workers * sum(step.values())),
    )


def largest_shard(mean: float, workers: int) -> float:
    """Returns the expected maximum of W independent Poisson variables: ``sum over k >= 0 of 1 - P(X <= k)^W``.

    X is one of these variables: the number of a worker's records in a step. If each record is a group of its own, the record's
    key decides which worker has the record, and each record is drawn independently of all others. So X is approximately
    Poisson, as long as a worker's records in a step are a small part of all records.

    Args:
        mean: B/W, the expected number of records of one worker in a step.
        workers: W, the number of workers.
    """
    if workers == 1:
        return mean
    k = np.arange(1, math.ceil(mean + 12 * math.sqrt(mean) + 40))
    log_probability = np.concatenate([[0.0], np.cumsum(np.log(mean / k))]) - mean  # log P(X = 0, 1, 2, ...)
    at_most = np.cumsum(np.exp(log_probability)).clip(max=1.0)
    return float(np.sum(1.0 - at_most**workers))


def largest_share(groups: int, size: float, workers: int) -> float:
    """Returns the expected number of records of the worker that has most records in a step.

    The groups of the step are divided among W workers by size (`dpfed.data.sampling.dealt`).

    The result is the mean over 16 draws of all groups' sizes, from a fixed seed. With more than 2^20 groups, where differences
    in size average out, the result is the expected number for the worker that has most groups.

    Args:
        groups: K, the number of groups.
        size: B/K, the expected number of records of a group.
        workers: W, the number of workers.
    """
    if groups > _MOST_GROUPS:  # sizes then average out
        return size * math.ceil(groups / workers)
    random, busiest = np.random.default_rng(0), []
    for _ in range(_DRAWS):
        sizes = random.poisson(size, groups)
        busiest.append(np.bincount(dealt(sizes, workers), weights=sizes).max())
    return float(np.mean(busiest))


def transport_seconds(size: int, workers: int, bandwidth: float, latency: float) -> float:
    """Returns the seconds of a reduce and a broadcast along a ring, in pieces: ``2 (W - 1) latency + size / bandwidth``.

    Args:
        size: Bytes of both vectors, the sum and the parameters.
        workers: W, the number of workers: W - 1 hops, each of which delays the first piece. For 1, the result is 0.
        bandwidth: Bytes per second over the slowest link, which every piece crosses once.
        latency: Seconds per hop.
    """
    return 0.0 if workers == 1 else 2 * (workers - 1) * latency + size / bandwidth


def bottleneck(one: Estimate) -> str:
    """Returns a sentence that names the part of a step that takes longest, and a remedy."""
    remedies = {
        "data": (
            "drawing, reading and augmenting records",
            "more workers, more cores, or images stored at their final size help",
        ),
        "gradients": ("computing gradients", "more or faster GPUs help"),
        "transport": (
            "sending sums and parameters",
            "a faster network, fewer workers or fewer trained parameters (adapters) help",
        ),
        "coordinator": ("noise, optimizer and bookkeeping on the coordinator", "train fewer parameters (adapters)"),
    }
    part = max(remedies, key=lambda name: getattr(one, name))
    share = getattr(one, part) / one.step
    noun = "worker" if one.workers == 1 else "workers"
    what, remedy = remedies[part]
    return f"The bottleneck with {one.workers} {noun} is {what} ({share:.0%} of a step): {remedy}."


def _seconds(plan: PrivacyPlan, machines: Machines, parameters: int, workers: int, divides: bool) -> dict[str, float]:
    """Returns the seconds that each part of a step takes, by the names of the fields of `Estimate`.

    Args:
        plan: Plan of the run.
        machines: Speeds and price of the machines.
        parameters: P, the number of trained parameters.
        workers: W, the number of workers.
        divides: Whether workers divide the groups of a step, so that each draws from all records; otherwise they divide the
            records.
    """
    records, millions = _of_the_busiest(plan, workers, divides), parameters / 1e6
    gradients, decoding = records / machines.throughput, records * machines.decoding
    grouped = records + (_SET_ASIDE * (_records(plan) - records) if divides else 0.0)
    sampling = _drawing(plan, machines, workers, divides) + machines.drawn * grouped / 1e6
    sampling = max(0.0, sampling - gradients) if machines.ahead else sampling
    waiting = max(0.0, decoding - gradients) if machines.ahead else decoding
    size = (_bytes_up(plan) + _PARAMETER_BYTES) * parameters
    transport = transport_seconds(size, workers, machines.bandwidth, machines.latency)
    meanwhile = sampling + waiting + records * machines.views + gradients + transport
    waiting_for_noise = machines.each_step + (machines.noise * millions if plan.private else 0.0)
    waiting_for_noise += max(0.0, machines.bookkeeping * millions - meanwhile)
    commit = machines.commit * millions / max(1.0, _BETWEEN_COMMITS // max(1e-6, meanwhile + waiting_for_noise))
    return {
        "sampling": sampling,
        "decoding": waiting,
        "views": records * machines.views,
        "gradients": gradients,
        "transport": transport,
        "coordinator": waiting_for_noise + commit,
    }


def _drawing(plan: PrivacyPlan, machines: Machines, workers: int, divides: bool) -> float:
    """Returns how many seconds a worker needs, per step, to draw its records.

    Records are drawn for a block of several steps at once, and the time of a block is divided among the steps.
    """
    if not isinstance(plan.mechanism.sampler, PoissonSampler):
        return 0.0
    millions, block = plan.sampling.records / 1e6, plan.mechanism.sampler.block
    if not divides:
        millions /= workers
    # `keys` is measured for a block in which each record is drawn once: two gaps, the first one and one for the draw.
    once = 0.5 * (1 + plan.sampling.rate * block)
    return machines.keys * millions * once * math.ceil(plan.steps / block) / plan.steps


def _of_the_busiest(plan: PrivacyPlan, workers: int, divides: bool) -> float:
    """Returns the expected number of records of the busiest worker in a step."""
    if workers == 1 or not divides:
        return largest_shard(_records(plan) / workers, workers)
    return plan.sampling.per_unit * largest_share(plan.groups, plan.sampling.batch / plan.groups, workers)


def _bytes_up(plan: PrivacyPlan) -> int:
    """Returns the bytes of one element of a sum: 8 for the 64-bit integers of a private plan, 4 for float32 without privacy."""
    return 8 if plan.private else 4


def _records(plan: PrivacyPlan) -> int:
    """Returns the expected number of records of a step. A protected unit is assumed to have as many records as are allowed."""
    return plan.sampling.batch * plan.sampling.per_unit


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"impossible estimate: {message}. [cluster-estimate]")
