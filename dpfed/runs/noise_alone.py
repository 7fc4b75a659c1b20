"""Measures the effect of noise alone on a model's figures: training that learns nothing must not count as a gain.

Noise moves the weights, and so the figures, whether or not there is anything to learn. The effect of noise is measured on
further models: their weights are the starting weights plus the changes that training made, each with a random sign.

**Why.** Without any signal the coordinates of the noisy gradient are independent Gaussian noise, as likely as their negatives.
SGD, Adam and AdamW treat each coordinate separately. So the trained weights have the same distribution as the
starting weights plus the changes with random signs. (With weight decay or LARS this holds only approximately.) A run of private
moments uses the released numbers as its weights; for such a run, fresh noise with the release's standard deviation takes their
place.

The further models follow from the released weights, so making them costs no privacy. Their figures are exact, like all others.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from dpfed.evaluation.measured import Evaluation
from dpfed.models.parameters import TrainableVector
from dpfed.runs.build import Parts

_DRAWS = 4  # number of models that are measured: t then has three degrees of freedom, and each model costs an evaluation


def noise_alone(parts: Parts, start: Tensor) -> list[list[Evaluation]]:
    """Measures models with weights that noise alone may have produced.

    Args:
        parts: Parts of the run; their model must hold the published weights.
        start: Trainable weights before training, ``(P,)``.

    Returns:
        The figures of each model.
    """
    model = copy.deepcopy(parts.model)
    vector = TrainableVector(model)
    start = start.to(vector.device)
    moved, generator = vector.gather() - start, torch.Generator().manual_seed(0)  # the same figures after an interruption
    closed_form = parts.plan.bounding.method.closed_form
    noise_std = (parts.learner.noise.std or parts.plan.noise_std) / parts.plan.divisor
    figures = []
    for _ in range(_DRAWS):
        if closed_form:
            weights = torch.randn(vector.numel, generator=generator).to(start) * noise_std
        else:
            signs = torch.randint(0, 2, (vector.numel,), generator=generator, dtype=torch.int8)
            weights = start + moved * (2 * signs - 1).to(start)
        vector.assign(weights)
        figures.append(parts.evaluator(model, "trained", parts.plan.steps))
    return figures
