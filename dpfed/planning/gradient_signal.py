"""How long the clipped mean gradient is, and how far it moves the embeddings, beside noise of the same engine's sum.

Lengths alone mislead: noise has a part on every trained number, and most of these parts hardly change what the model says. So
the signal is weighed where it counts. With J, the derivative of some records' embeddings by the trained numbers, a gradient g
moves the embeddings by |J g|, and noise of standard deviation 1 moves them by sqrt(tr J J^T) on average. Their ratio is the
response. It has no units, so that models, adapters and group sizes can be compared.
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

_SUMS = 8  # that are measured apart from each other: what they agree on is the gradient
_MOST_GROUPS, _LEAST_GROUPS = 16, 2  # of a sum
_RECORDS, _FEWEST = 128, 16  # whose embeddings are looked at; fewer where images are large
_SIDE = 32  # pixels, up to which an image is small
_DRAWS = 4  # of noise
_STEP = 0.01  # of the trained numbers' length: as far as the first difference goes
_CHANGES = (0.002, 0.05)  # of an embedding of length 1, by a difference that is fine enough, and still exact
_TRIES = 8


@dataclass(frozen=True)
class Signal:
    """The gradient of a group, as the run's engine clips it, at one place of the parameters.

    Attributes:
        group_size: S.
        groups: on how many it was measured.
        numbers: P, how many are trained.
        length: L2 norm of the mean clipped gradient of a group.
        error: standard error of `length`, relative.
        response: how far that mean moves the embeddings, over how far noise of standard deviation 1 does.
        seconds: that a step takes for each record that is drawn.
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
        simulated: the run's own parts over public records; their parameters stay as they are.
        plan: of the private run; its group size counts, and what it clips.
        budget: seconds that the gradients may take, or longer where the machine is slow.
    """
    size, seconds = plan.bounding.group_size, _seconds_of_a_group(simulated, plan)
    groups = int(min(_MOST_GROUPS, max(_LEAST_GROUPS, budget / (_SUMS * seconds))))
    groups = max(1, min(groups, simulated.protected // size))
    worker = simulated.worker(_of_groups(simulated, plan, groups), Randomness.from_seed(2), groups)
    numbers = TrainableVector(simulated.parts.model).numel  # figures of the groups may stand behind them
    sums, times = [], []
    for number in range(_SUMS):
        started = time.perf_counter()
        sums.append(worker.bounded_sum(number).numbers()[:numbers].float() / groups)
        times.append(time.perf_counter() - started)
    means = torch.stack(sums)
    seconds = min(times) / (groups * size)  # the least disturbed by whatever else this machine does
    square, error = _square_of_mean(means)
    halves = means[0::2].mean(0), means[1::2].mean(0)
    length = math.sqrt(max(square, 0.0))
    relative = error / (2 * square) if square > 0 else math.inf
    response = _response(simulated, halves)
    return Signal(size, _SUMS * groups, numbers, length, relative, response, seconds)


def _of_groups(simulated: SimulatedRun, plan: PrivacyPlan, groups: int) -> PrivacyPlan:
    """The same plan for a step of so few groups; nothing is released by it."""
    records = max(2, simulated.protected)
    return plan.replace(records=records, batch=min(records, groups * plan.bounding.group_size), target_epsilon=None)


def _seconds_of_a_group(simulated: SimulatedRun, plan: PrivacyPlan) -> float:
    worker = simulated.worker(_of_groups(simulated, plan, _LEAST_GROUPS), Randomness.from_seed(1), _LEAST_GROUPS)
    worker.bounded_sum(0)  # the first one is slow
    started = time.perf_counter()
    worker.bounded_sum(1)
    return (time.perf_counter() - started) / _LEAST_GROUPS


def _square_of_mean(means: Tensor) -> tuple[float, float]:
    """The squared length of the mean that independent estimates have, and its standard error.

    Each estimate is multiplied with the others only, so that what they do not share adds nothing on average.

    Args:
        means: ``(m, P)``.
    """
    products = (means.double() @ means.double().T).fill_diagonal_(0.0)
    each = products.sum(1) / (len(means) - 1)
    return each.mean().item(), 2 * each.std().item() / math.sqrt(len(means))


def _response(simulated: SimulatedRun, halves: tuple[Tensor, Tensor]) -> float:
    """See `Signal`; two independent halves of the gradient, so that what they do not share adds nothing on average."""
    parts = simulated.parts
    count = min(_RECORDS, max(_FEWEST, _RECORDS * _SIDE**2 // (parts.config.data.size or _SIDE) ** 2))
    views = parts.views.maker(parts.store)(simulated.indices[:count], Randomness.from_seed(3), 0, parts.learner.device)
    vector, generator = TrainableVector(parts.model), torch.Generator().manual_seed(0)
    here = vector.gather()

    def moved(direction: Tensor) -> Tensor:
        """J times a direction, by a difference to both sides that changes the embeddings a little."""
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
    return math.sqrt(max(signal, 0.0) * _DRAWS / sum(one.square().sum().item() for one in noise))


@torch.no_grad()
def _embedded(model: nn.Module, vector: TrainableVector, parameters: Tensor, views: dict[str, Tensor]) -> Tensor:
    """Every record's embeddings of unit length, without what all records have in common."""
    vector.assign(parameters)
    embeddings = embeddings_of(model.eval(), views)
    each = [normalize(embeddings[name][:, 0].float(), dim=-1) for name in views]
    return torch.cat([z - z.mean(0) for z in each], dim=1)
