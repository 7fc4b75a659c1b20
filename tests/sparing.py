"""Which of many parameters the normal suite tries; `make test-slow` tries all of them."""

from collections.abc import Iterable
from typing import Any

import pytest


def sparing(values: Iterable[Any], *kept: Any) -> list[Any]:
    """The values as parameters of a test, all but the kept ones marked as slow."""
    values = list(values)
    assert set(kept) <= set(values), "what is kept must be among the values"
    return [value if value in kept else pytest.param(*_parts(value), marks=pytest.mark.slow) for value in values]


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
