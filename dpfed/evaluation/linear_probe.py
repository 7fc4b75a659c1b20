"""Linear probe: what a linear classifier can read from frozen features."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def linear_probe_accuracy(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, l2: float = 1e-4, iterations: int = 100
) -> float:
    """Accuracy in [0, 1], see `linear_probe_right`."""
    return float(linear_probe_right(train_x, train_y, test_x, test_y, l2, iterations).double().mean())


def linear_probe_right(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, l2: float = 1e-4, iterations: int = 100
) -> Tensor:
    """Which test records are told by multinomial logistic regression on standardised frozen features. Deterministic.

    Args:
        train_x: ``(n, F)`` features of labelled records; their mean and deviation standardise both sets.
        train_y: ``(n,)`` int64 labels.
        test_x: ``(m, F)`` features.
        test_y: ``(m,)`` int64 labels; one that no training record has counts as wrong.
        l2: see `fit`.
        iterations: see `fit`.

    Returns:
        ``(m,)`` bool, on the CPU.

    Raises:
        ValueError: for empty or mismatched inputs.
    """
    if not len(train_x) or not len(test_x) or len(train_x) != len(train_y) or len(test_x) != len(test_y):
        raise ValueError(
            f"a linear probe needs records with one label each, got {len(train_x)} and {len(train_y)} for training, "
            f"{len(test_x)} and {len(test_y)} for the test"
        )
    mean = train_x.float().mean(dim=0)
    # A feature that never varies says nothing; dividing it by 1 leaves it at zero.
    deviation = train_x.float().std(dim=0, correction=0)
    deviation = torch.where(deviation > 1e-7, deviation, 1.0)
    labels, target = train_y.unique(return_inverse=True)
    weight, bias = fit((train_x.float() - mean) / deviation, target, len(labels), l2, iterations)
    predicted = (((test_x.float() - mean) / deviation) @ weight.T + bias).argmax(dim=1)
    return (labels[predicted] == test_y).cpu()


def fit(x: Tensor, y: Tensor, classes: int, l2: float, iterations: int) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression by L-BFGS from zero.

    Minimises ``mean cross-entropy + l2/2 * ||weight||^2``; the bias is free.

    Args:
        x: ``(n, F)`` float32.
        y: ``(n,)`` int64 in [0, classes).
        classes: C.
        l2: strength of the penalty.
        iterations: most L-BFGS iterations.

    Returns:
        weight ``(C, F)`` and bias ``(C,)``.
    """
    weight = torch.zeros(classes, x.shape[1], device=x.device, requires_grad=True)
    bias = torch.zeros(classes, device=x.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=iterations,
        history_size=10,
        tolerance_grad=1e-6,
        tolerance_change=1e-9,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(x @ weight.T + bias, y) + 0.5 * l2 * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return weight.detach(), bias.detach()
