"""What a benchmark watches from outside is still there under its name."""

import importlib
import sys
from pathlib import Path

import pytest

from benchmarks.rounds import PARTS

APP = Path(__file__).parents[2] / "benchmarks" / "peers" / "flower_app"


def test_every_part_of_a_round_that_is_timed_exists():
    assert [part for part, (owner, name) in PARTS.items() if not callable(getattr(owner, name, None))] == []


@pytest.mark.parametrize("module", ["flower_client", "flower_server"])
def test_flowers_own_rounds_find_what_they_import_from_it(module, monkeypatch):
    """Flower loads an app by the names in its own folder, when a run begins."""
    monkeypatch.syspath_prepend(str(APP))
    monkeypatch.delitem(sys.modules, module, raising=False)
    assert hasattr(importlib.import_module(module), "app")
