"""Which of many parameters the normal suite tries; `make test-slow` tries all of them."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def sparing(values: Iterable[Any], *kept: Any) -> list[Any]:
    """The values as parameters of a test, all but the kept ones marked as slow."""
    values = list(values)
    assert set(kept) <= set(values), "what is kept must be among the values"
    parts = [(value, value if isinstance(value, tuple) else (value,)) for value in values]
    return [value if value in kept else pytest.param(*arguments, marks=pytest.mark.slow) for value, arguments in parts]


def halved(*axes: Iterable[Any]) -> list[Any]:
    """All combinations as parameters, every other one marked as slow: of three axes or more, any two values still meet."""
    numbered = itertools.product(*(enumerate(axis) for axis in axes))
    cases = [(sum(number for number, _ in case), tuple(value for _, value in case)) for case in numbered]
    return [pytest.param(*values, marks=[pytest.mark.slow] * (places % 2)) for places, values in cases]


def pairwise(*axes: Iterable[Any]) -> list[Any]:
    """All combinations as parameters; those that show no new pair of values of two axes are marked as slow."""
    parts, met = [], set()
    cases = list(itertools.product(*(list(axis) for axis in axes)))
    while cases:
        pairs = [set(itertools.combinations(enumerate(values), 2)) - met for values in cases]
        best = max(range(len(cases)), key=lambda case: len(pairs[case]))
        parts.append(pytest.param(*cases.pop(best), marks=[pytest.mark.slow] * (not pairs[best])))
        met |= pairs[best]
    return parts
