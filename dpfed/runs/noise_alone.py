"""What the noise alone makes of a model's figures: training that learns nothing must not count as a gain.

Noise moves the weights, and so the figures, whether or not there is anything to learn. How far is seen on models whose weights
are as far from the untrained ones, coordinate by coordinate, with signs drawn by chance. **Why.** Without any signal each
coordinate of the noisy gradient is Gaussian noise of its own, as likely as its negative. SGD, Adam and AdamW treat each
coordinate by itself. The trained weights and those with other signs then have the same distribution. (Weight decay and LARS
keep to this only nearly.) A run in closed form sets the weights to what was released, so there the noise itself is drawn.

All of it follows from the released weights, and costs no privacy beyond that of the figures themselves.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from dpfed.evaluation.measured import Evaluation
from dpfed.models.parameters import TrainableVector
from dpfed.runs.build import Parts

_DRAWS = 4  # figures of as many models: t has three degrees of freedom, and each costs an evaluation


def noise_alone(parts: Parts, start: Tensor) -> list[list[Evaluation]]:
    """Measures models that noise alone may have made.

    Args:
        parts: of the run; its model has the weights that are measured and published.
        start: ``(P,)``, the trainable weights before training.
    """
    model = copy.deepcopy(parts.model)
    vector = TrainableVector(model)
    start = start.to(vector.device)
    moved, generator = vector.gather() - start, torch.Generator().manual_seed(0)  # the same figures after an interruption
    closed_form = parts.plan.bounding.method.closed_form
    noise_std = (parts.learner.noise.std or parts.plan.noise_std) / parts.plan.divisor
    found = []
    for _ in range(_DRAWS):
        if closed_form:
            weights = torch.randn(vector.numel, generator=generator).to(start) * noise_std
        else:
            signs = torch.randint(0, 2, (vector.numel,), generator=generator, dtype=torch.int8)
            weights = start + moved * (2 * signs - 1).to(start)
        vector.assign(weights)
        found.append(parts.evaluator(model, "trained", parts.plan.steps))
    return found
