"""Signals with a known answer, and a finished run."""

from __future__ import annotations

import pytest
import torch

from dpfed.audit.signals import Signals
from dpfed.config import parse_config
from dpfed.runs.pretraining import pretrain


@pytest.fixture
def normal_signals():
    """Signals of normal records; members' losses are lower and their views more alike, by `closer` deviations."""
    generator = torch.Generator().manual_seed(5)

    def make(records: int, closer: float = 0.0) -> Signals:
        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        common = normal(records, 1)  # what all draws of a record have in common
        cosines = {
            kind: common + normal(records, pairs) + closer for kind, pairs in {"image-image": 10, "image-text": 25}.items()
        }
        return Signals(
            losses=common + normal(records, 5) - closer,
            gradients=normal(records, 7) - closer,
            similarities={kind: values.sort(descending=True).values for kind, values in cosines.items()},
        )

    return make


@pytest.fixture
def at_chance(normal_signals, monkeypatch):
    """Audits see made-up signals instead of the model's, of all records alike: quick."""

    def made_up(model, loss, views, references, advance) -> Signals:
        return normal_signals(sum(1 for _ in views))

    monkeypatch.setattr("dpfed.audit.membership.signals_of", made_up)


@pytest.fixture(scope="session")
def audited(shapes, tmp_path_factory):
    """A finished private run of two steps, for tests that write into it or break copies of it."""
    config = {
        "name": "audited",
        "data": {"source": "store", "path": str(shapes.path), "size": 16},
        "views": {"crop_scale": [0.5, 1.0]},
        "model": {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16},
        "bounding": {"group_size": 4, "engine": "loop"},
        "privacy": {"epsilon": 2.0, "batch": 60, "steps": 2},
        "training": {"device": "cpu"},
        "evaluation": {"split": "none"},
    }
    return pretrain(parse_config(config), tmp_path_factory.mktemp("audited") / "run")
