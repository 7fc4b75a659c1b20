"""Linear probe: what a linear classifier can read from frozen features."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

_TOLERANCE = 1e-6  # largest element of the gradient at which the fit has ended; with many classes all are small
_SCIPY_SWITCH = "SCIPY_ARRAY_API"


def linear_probe_right(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, l2: float = 1e-4, iterations: int = 100
) -> Tensor:
    """Which test records are told by multinomial logistic regression on standardised frozen features. Deterministic.

    Args:
        train_x: ``(n, F)`` features of labelled records; their mean and deviation standardise both sets. What is not finite
            counts as 0.
        train_y: ``(n,)`` int64 labels.
        test_x: ``(m, F)`` features, on the same device.
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
    if bool((train_y == train_y[0]).all()):  # nothing can be fitted to a single class, and nothing need be
        return (test_y == train_y[0]).cpu()
    probe = fit(_finite(train_x), train_y, l2, iterations)
    with _tensors_in_sklearn():
        return (probe.predict(_finite(test_x)) == test_y).cpu()


def fit(x: Tensor, y: Tensor, l2: float, iterations: int) -> Pipeline:
    """Multinomial logistic regression on standardised features, by L-BFGS from zero.

    Minimises ``mean cross-entropy + l2/2 * ||weight||^2``; the bias is free. Two classes share one weight vector, which tells
    the second from the first.

    Args:
        x: ``(n, F)`` float32, on any device.
        y: ``(n,)`` int64, on the same; two different values at least.
        l2: strength of the penalty.
        iterations: most L-BFGS iterations; where they are not enough, the last one counts.

    Returns:
        scikit-learn's, to be used on tensors of that device.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = LogisticRegression(C=1 / (l2 * len(x)), max_iter=iterations, tol=_TOLERANCE)
    with _tensors_in_sklearn(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make_pipeline(StandardScaler(), regression).fit(x, y)


@contextlib.contextmanager
def _tensors_in_sklearn() -> Iterator[None]:
    """Lets scikit-learn compute on tensors where they are, on a CPU or a GPU.

    It asks that SciPy be switched over, too. What is used here hands no tensor to SciPy, so the switch is put back at once.
    """
    import sklearn

    before = os.environ.get(_SCIPY_SWITCH)
    os.environ[_SCIPY_SWITCH] = "1"
    try:
        with sklearn.config_context(array_api_dispatch=True):
            yield
    finally:
        os.environ.pop(_SCIPY_SWITCH)
        if before is not None:
            os.environ[_SCIPY_SWITCH] = before


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0.0).float()
