"""Linear probe: the accuracy of a linear classifier on frozen features."""

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

_TOLERANCE = 1e-6  # the fit ends when no element of the gradient exceeds this; with many classes all elements are small
_SCIPY_SWITCH = "SCIPY_ARRAY_API"


def linear_probe_right(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, l2: float = 1e-4, iterations: int = 100
) -> Tensor:
    """Fits a multinomial logistic regression to standardised frozen features; returns which test records it gets right.

    Args:
        train_x: Features of labelled records, shape ``(n, F)``. Training and test features are standardised by the mean and
            standard deviation of the training features. Values that are not finite count as 0.
        train_y: Labels of the training records, int64 ``(n,)``.
        test_x: Features of test records, shape ``(m, F)``, on the same device.
        test_y: Labels of the test records, int64 ``(m,)``. A test record counts as wrong if no training record has its label.
        l2: Strength of the penalty, above 0; see `fit`.
        iterations: Largest number of iterations; see `fit`.

    Returns:
        Whether each test record is right, bool ``(m,)`` on the CPU.

    Raises:
        ValueError: If there are no training or no test records, or records and labels differ in number.
    """
    if not len(train_x) or not len(test_x) or len(train_x) != len(train_y) or len(test_x) != len(test_y):
        raise ValueError(
            f"a linear probe needs records with one label each, got {len(train_x)} and {len(train_y)} for training, "
            f"{len(test_x)} and {len(test_y)} for the test"
        )
    if bool((train_y == train_y[0]).all()):  # a single class can and need not be fitted
        return (test_y == train_y[0]).cpu()
    probe = fit(_finite(train_x), train_y, l2, iterations)
    with _tensors_in_sklearn():
        return (probe.predict(_finite(test_x)) == test_y).cpu()


def fit(x: Tensor, y: Tensor, l2: float, iterations: int) -> Pipeline:
    """Fits multinomial logistic regression to standardised features, by L-BFGS from zero.

    The fit minimises ``mean cross-entropy + l2/2 * ||weight||^2``; the bias is not penalised. If there are only two classes,
    there is one weight vector, which separates the second class from the first.

    Args:
        x: Features, float32 ``(n, F)``, on any device.
        y: Labels, int64 ``(n,)``, on the same device, with at least two different values.
        l2: Strength of the penalty, above 0.
        iterations: Largest number of L-BFGS iterations; if the fit has not converged by then, the last iterate is used.

    Returns:
        The fitted scikit-learn pipeline, for tensors on the same device.

    Raises:
        ValueError: If all labels are equal, or a feature is not finite.
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
    """Lets scikit-learn compute on tensors on their own device, a CPU or a GPU.

    scikit-learn requires that SciPy's switch for the array API is set as well. scikit-learn's functions that `fit` uses pass no
    tensor to SciPy. The switch is reset at the end of the block.
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
