"""Measures the signal of the mean clipped gradient: its norm, and how far it moves embeddings compared with noise.

The norm of a gradient compared with the norm of the noise would mislead. Noise changes every trained parameter, and most of
these changes hardly change the model's output. So the signal is measured in the embeddings. Let J be the derivative of some
records' embeddings with respect to the trained parameters. A gradient g moves the embeddings by |J g|, and noise of standard
deviation 1 moves them by sqrt(tr J J^T), the root mean square. The response is |J g| divided by this root mean square.
Models, adapters and group sizes can be compared by their responses.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from dpfed.models.contract import embeddings_of
from dpfed.models.parameters import TrainableVector
from dpfed.planning.simulated import SimulatedRun
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness

_SUMS = 8  # sums that are measured independently; their common part is the gradient
_MOST_GROUPS, _LEAST_GROUPS = 16, 2  # groups in a sum
_RECORDS, _FEWEST = 128, 16  # records whose embeddings are compared; fewer if images are large
_SIDE = 32  # side in pixels up to which an image counts as small
_DRAWS = 4  # draws of noise
_STEP = 0.01  # first step of the finite difference, relative to the L2 norm of the trained parameters
_CHANGES = (0.002, 0.05)  # accepted changes of unit-length embeddings: exact enough, and still a fine difference
_TRIES = 8  # largest number of attempts to find a step with such a change


@dataclass(frozen=True)
class Signal:
    """The signal of groups' gradients, clipped by the run's engine, at the current parameters.

    Attributes:
        group_size: Number S of records in a group.
        groups: Number of groups that were measured.
        numbers: Number P of trained parameters.
        length: L2 norm of the mean clipped gradient of a group.
        error: Relative standard error of `length`; infinity if `length` is 0.
        response: Change of the embeddings by the mean clipped gradient, divided by their change by noise of standard
            deviation 1.
        seconds: Time of a step in seconds, divided by the number of records that the step samples.
    """

    group_size: int
    groups: int
    numbers: int
    length: float
    error: float
    response: float
    seconds: float


def measured(simulated: SimulatedRun, plan: PrivacyPlan, budget: float) -> Signal:
    """Measures the gradient on public records.

    Args:
        simulated: Parts of the run over public records; the model's parameters are not changed.
        plan: Plan of the private run, which gives the group size and the clipping rule.
        budget: Seconds that the measurement should take; a slow machine may take longer.
    """
    size, seconds = plan.bounding.group_size, _seconds_of_a_group(simulated, plan)
    groups = int(min(_MOST_GROUPS, max(_LEAST_GROUPS, budget / (_SUMS * seconds))))
    groups = max(1, min(groups, simulated.protected // size))
    worker = simulated.worker(_of_groups(simulated, plan, groups), Randomness.from_seed(2), groups)
    numbers = TrainableVector(simulated.parts.model).numel  # in a sum, the groups' statistics may follow the gradient
    sums, times = [], []
    for number in range(_SUMS):
        started = time.perf_counter()
        sums.append(worker.bounded_sum(number).numbers()[:numbers].float() / groups)
        times.append(time.perf_counter() - started)
    means = torch.stack(sums)
    seconds = min(times) / (groups * size)  # the minimum is least affected by other load on the machine
    square, error = _square_of_mean(means)
    halves = means[0::2].mean(0), means[1::2].mean(0)
    length = math.sqrt(max(square, 0.0))
    relative = error / (2 * square) if square > 0 else math.inf
    response = _response(simulated, halves)
    return Signal(size, _SUMS * groups, numbers, length, relative, response, seconds)


def _of_groups(simulated: SimulatedRun, plan: PrivacyPlan, groups: int) -> PrivacyPlan:
    """Returns the plan for a step of a few groups; nothing is released under this plan."""
    records = max(2, simulated.protected)
    return plan.replace(records=records, batch=min(records, groups * plan.bounding.group_size), target_epsilon=None)


def _seconds_of_a_group(simulated: SimulatedRun, plan: PrivacyPlan) -> float:
    worker = simulated.worker(_of_groups(simulated, plan, _LEAST_GROUPS), Randomness.from_seed(1), _LEAST_GROUPS)
    worker.bounded_sum(0)  # warm-up: the first sum is slow
    started = time.perf_counter()
    worker.bounded_sum(1)
    return (time.perf_counter() - started) / _LEAST_GROUPS


def _square_of_mean(means: Tensor) -> tuple[float, float]:
    """Estimates the squared norm of the mean from independent estimates, and the standard error of the squared norm.

    Each estimate is multiplied only with the other estimates. So errors that are uncorrelated between estimates average out.

    Args:
        means: Independent estimates of the mean, shape ``(m, P)``.
    """
    products = (means.double() @ means.double().T).fill_diagonal_(0.0)
    each = products.sum(1) / (len(means) - 1)
    return each.mean().item(), 2 * each.std().item() / math.sqrt(len(means))


def _response(simulated: SimulatedRun, halves: tuple[Tensor, Tensor]) -> float:
    """Computes the response (see `Signal`) from two independent halves of the gradient, so that their errors average out."""
    parts = simulated.parts
    count = min(_RECORDS, max(_FEWEST, _RECORDS * _SIDE**2 // (parts.config.data.size or _SIDE) ** 2))
    views = parts.views.maker(parts.store)(simulated.indices[:count], Randomness.from_seed(3), 0, parts.learner.device)
    vector, generator = TrainableVector(parts.model), torch.Generator().manual_seed(0)
    here = vector.gather()

    def moved(direction: Tensor) -> Tensor:
        """Returns J times a direction: how the embeddings change if the parameters move along it, by a central difference."""
        length = direction.norm().clamp(min=1e-30)
        far = _STEP * here.norm().clamp(min=1.0)
        for _ in range(_TRIES):
            step = direction * (far / length)
            there, back = (_embedded(parts.model, vector, here + sign * step, views) for sign in (1, -1))
            change = (there - back).square().sum(1).mean().sqrt().item() / 2
            if _CHANGES[0] <= change <= _CHANGES[1]:
                break
            far = far * min(1e3, max(1e-3, math.sqrt(_CHANGES[0] * _CHANGES[1]) / max(change, 1e-12)))
        return (there - back) / (2 * far) * length

    try:
        first, second = (moved(half) for half in halves)
        noise = [moved(torch.randn(vector.numel, generator=generator).to(vector.device)) for _ in range(_DRAWS)]
    finally:
        vector.assign(here)
    signal = (first * second).sum().item()
    return math.sqrt(max(signal, 0.0) * _DRAWS / sum(change.square().sum().item() for change in noise))


@torch.no_grad()
def _embedded(model: nn.Module, vector: TrainableVector, parameters: Tensor, views: dict[str, Tensor]) -> Tensor:
    """Returns every record's unit-length embeddings minus their mean over the records."""
    vector.assign(parameters)
    embeddings = embeddings_of(model.eval(), views)
    each = [normalize(embeddings[name][:, 0].float(), dim=-1) for name in views]
    return torch.cat([z - z.mean(0) for z in each], dim=1)
