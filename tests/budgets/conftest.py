"""A small private store, and plans for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfed.budgets.reservations import Reservation
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.privacy.plan import PrivacyPlan

PLAN = PrivacyPlan.of(1000, 50, 5, 1.0, steps=100, noise_multiplier=1.5, delta=1e-4, accountant="rdp")


def write_store(
    path: Path, names: list[str], unit: Callable[[str], str] | None = None, seed: int = 0, **options
) -> RecordStore:
    """A private store of tiny images, each of one colour."""
    images = np.random.default_rng(seed).integers(0, 255, (len(names), 1, 1, 3), dtype=np.uint8)
    with StoreWriter(path, name="people", kind="image", size=8, unit_name="person" if unit else None, **options) as writer:
        for name, image in zip(names, images, strict=True):
            from PIL import Image

            picture = Image.fromarray(np.broadcast_to(image, (8, 8, 3)).copy())
            writer.add(RecordInput(name, picture, unit=unit(name) if unit else None))
    return RecordStore.open(path)


NAMES = [f"person-{number}" for number in range(1000)]


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    return write_store(tmp_path_factory.mktemp("people") / "store", NAMES).path


@pytest.fixture
def store(written, tmp_path) -> RecordStore:
    """1,000 private records, which a test may spoil."""
    return RecordStore.open(shutil.copytree(written, tmp_path / "store"))


@pytest.fixture
def reservation(tmp_path) -> Callable[..., Reservation]:
    """Claims of runs at places of their own, by number."""

    def make(number: int, charged: int = 0, **changes) -> Reservation:
        plan = PLAN.replace(**changes)
        return Reservation(f"{number:016x}", "run", f"run-{number}", tmp_path / f"run-{number}", plan, charged)

    return make
