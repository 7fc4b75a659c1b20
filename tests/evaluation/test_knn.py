"""k-NN against a slow loop that follows the definition."""

import math
from collections import defaultdict

import pytest
import torch

from dpfed.evaluation.knn import knn_correct


def knn_accuracy(*sets, **how):
    return float(knn_correct(*sets, **how).double().mean())


def naive(train_x, train_y, test_x, test_y, k, temperature):
    right = 0
    for x, y in zip(test_x.double(), test_y.tolist(), strict=True):
        near = sorted(
            (
                (float(x @ t / (x.norm() * t.norm())), label)
                for t, label in zip(train_x.double(), train_y.tolist(), strict=True)
            ),
            reverse=True,
        )[:k]
        votes = defaultdict(float)
        for cosine, label in near:
            votes[label] += 1 if temperature is None else math.exp(cosine / temperature)
        top = max(votes.values())
        right += next(label for _, label in near if votes[label] == top) == y
    return right / len(test_y)


@pytest.fixture
def sets():
    g = torch.Generator().manual_seed(1)
    train_y, test_y = torch.randint(4, (90,), generator=g), torch.randint(4, (60,), generator=g)
    centres = torch.randn(4, 6, generator=g)
    train_x, test_x = (centres[y] + 1.5 * torch.randn(len(y), 6, generator=g) for y in (train_y, test_y))
    return train_x, train_y, test_x, test_y


@pytest.mark.parametrize(("k", "temperature"), [(1, None), (3, None), (4, None), (20, 0.1), (200, 0.1)])
def test_equals_the_definition(sets, k, temperature):
    expected = naive(*sets, k, temperature)
    assert 0.2 < expected < 1
    assert knn_accuracy(*sets, k=k, temperature=temperature) == pytest.approx(expected)


@pytest.mark.parametrize("chunk", [1, 7, 60, 1000])
def test_chunks_do_not_matter(sets, chunk):
    assert knn_accuracy(*sets, chunk=chunk) == knn_accuracy(*sets)


def test_refuses_unlabelled_and_empty(sets):
    train_x, train_y, test_x, test_y = sets
    with pytest.raises(ValueError, match="negative"):
        knn_accuracy(train_x, train_y - 1, test_x, test_y)
    with pytest.raises(ValueError, match="needs training and test"):
        knn_accuracy(train_x[:0], train_y[:0], test_x, test_y)
