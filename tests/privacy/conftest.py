"""Accounting as the product does it."""

import pytest

from dpfed.privacy import accounting
from tests import calibrated


@pytest.fixture(autouse=True)
def searched(monkeypatch) -> None:
    """Every noise multiplier is searched for, whatever is kept."""
    monkeypatch.setattr(accounting, "_multiplier", calibrated.search)
