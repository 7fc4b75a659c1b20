"""Optimizers: post-processing of a private gradient, so none of it costs privacy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dpfed.training.options import OptimizerConfig

# Of a run in closed form, whose noisy sums are the weights themselves (`dpfed.training.post_processing.SetWeights`).
SETTING = OptimizerConfig(name="sgd", learning_rate=1.0, momentum=0.0)


def build_optimizer(config: OptimizerConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The configured optimizer over the trainable parameters."""
    common: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    match config.name:
        case "sgd":
            return torch.optim.SGD(parameters, momentum=config.momentum, **common)
        case "adam":
            return torch.optim.Adam(parameters, **common)
        case "adamw":
            return torch.optim.AdamW(parameters, **common)
        case "lars":
            from timm.optim import Lars  # a slow import that only this optimizer needs

            return Lars(parameters, momentum=config.momentum, **common)


def take_step(optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], parts: Iterable[Tensor], rate: float) -> None:
    """One step of an optimizer.

    Args:
        optimizer: over the parameters.
        parameters: those of the model.
        parts: the gradient of each.
        rate: learning rate.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
