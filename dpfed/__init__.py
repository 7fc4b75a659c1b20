"""dpfed: contrastive pretraining on private records under differential privacy.

This module exports the few names that a program needs. CONTRIBUTING.md describes the other packages.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Trainer": "dpfed.trainer",
    "Privacy": "dpfed.trainer",
    "Records": "dpfed.data.items.records",
    "Views": "dpfed.data.items.views",
    "SimCLR": "dpfed.models.own",
    "TwoTower": "dpfed.models.own",
    "BYOL": "dpfed.models.byol",
    "with_group_norm": "dpfed.models.norm",
    "Callback": "dpfed.callbacks",
    "Config": "dpfed.config",
    "load_config": "dpfed.config",
    "parse_config": "dpfed.config",
    "UserError": "dpfed.errors",
    "PrivacyPlan": "dpfed.privacy.plan",
    "RecordStore": "dpfed.data.store.records",
    "StoreWriter": "dpfed.data.store.writing",
    "RecordInput": "dpfed.data.store.record",
    "build_model": "dpfed.models.building",
    "pretrain": "dpfed.console.library",
    "resume": "dpfed.federation.simulation",
    "PrivateCCA": "dpfed.arrays.cca",
    "Encoder": "dpfed.encoder",
    "load": "dpfed.encoder",
}
_ROOMS = ("callbacks", "losses")
__all__ = ["__version__", *_HOMES, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"dpfed.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'dpfed' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
