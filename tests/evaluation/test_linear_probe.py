"""The linear probe against scipy's optimizer on the same objective in float64."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp

from dpfed.evaluation.linear_probe import fit, linear_probe_right


def linear_probe_accuracy(*sets):
    return float(linear_probe_right(*sets).double().mean())


def data(n=400, features=8, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, features, generator=g)
    y = torch.randint(classes, (n,), generator=g)
    return centres[y] + 1.2 * torch.randn(n, features, generator=g), y


def scipy_fit(x, y, classes, l2):
    x, y = x.double().numpy(), y.numpy()
    one_hot = np.eye(classes)[y]

    def objective(flat):
        weight, bias = flat[:-classes].reshape(classes, -1), flat[-classes:]
        logits = x @ weight.T + bias
        log_z = logsumexp(logits, axis=1)
        residual = (np.exp(logits - log_z[:, None]) - one_hot) / len(x)
        loss = (log_z - (logits * one_hot).sum(1)).mean() + 0.5 * l2 * (weight**2).sum()
        return loss, np.concatenate([(residual.T @ x + l2 * weight).ravel(), residual.sum(0)])

    result = minimize(objective, np.zeros(classes * x.shape[1] + classes), jac=True, method="BFGS", options={"gtol": 1e-8})
    return result.x[:-classes].reshape(classes, -1)


@pytest.mark.parametrize("l2", [1e-3, 0.1])
def test_finds_the_minimum(l2):
    x, y = data()
    x = (x - x.mean(0)) / x.std(0, correction=0)
    weight = fit(5 * x + 3, y, l2, iterations=500)[-1].coef_  # standardised again
    np.testing.assert_allclose(weight.numpy(), scipy_fit(x, y, 3, l2), atol=2e-3)


def test_scores_separable_classes_at_any_scale_and_number():
    x, y = data()
    x = torch.cat([x, 100 * torch.nn.functional.one_hot(y, 3)], dim=1) * torch.logspace(-4, 4, 11) + 7
    labels = torch.tensor([10, 3, 77])[y]
    assert linear_probe_accuracy(x[:300], labels[:300], x[300:], labels[300:]) == 1.0


def test_is_deterministic_and_takes_features_from_inference_mode():
    with torch.inference_mode():
        x, y = data(seed=3)
    first = linear_probe_accuracy(x[:300].clone(), y[:300].clone(), x[300:], y[300:])
    assert first == linear_probe_accuracy(x[:300], y[:300], x[300:], y[300:])


def test_refuses_mismatched_inputs():
    x, y = data()
    with pytest.raises(ValueError, match="one label each"):
        linear_probe_accuracy(x, y[:-1], x, y)
