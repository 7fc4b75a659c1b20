"""Computes the learning rates of a run's steps. They are public, so they cost no privacy."""

from __future__ import annotations

import math

from dpfed.training.options import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Returns the learning rate of a step: a linear warm-up, followed by a constant rate or a cosine that falls towards zero.

    Args:
        config: Peak rate, warm-up and schedule.
        step: Step, 0 .. steps - 1.
        steps: Number of steps of the run.
    """
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    if config.schedule == "constant":
        return config.learning_rate
    progress = (step - config.warmup) / max(1, steps - config.warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
