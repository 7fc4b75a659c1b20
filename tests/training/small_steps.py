"""A training of a few numbers whose sums are there at once, opened in a folder as a run is; and a process that dies."""

from __future__ import annotations

import builtins
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from dpfed.config import OptimizerConfig
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.coordinator import Coordinator
from dpfed.training.steps import Files, Steps
from tests.exact_sums import exact
from tests.killed import Killed

PLAN = PrivacyPlan.of(1000, 64, 4, 0.5, 9, 1.3, 1e-5)
SIZE = 6
KEY = Randomness.from_seed(5)


class Small:
    """What `Steps` needs of a learner."""

    world_size = 1

    def __init__(self, plan: PrivacyPlan = PLAN) -> None:
        self.plan, self.model = plan, nn.Linear(SIZE, 1, bias=False)
        nn.init.zeros_(self.model.weight)

    def create_ledger(self, path, marks):
        return Ledger.create(path, self.plan, marks)

    def coordinator(self, randomness, ledger, releases):
        config = OptimizerConfig(name="adam", learning_rate=0.1, ema=0.9)
        return Coordinator(self.plan, self.model, config, randomness, ledger, releases)


class Sums:
    """A transport of sums that follow from the step and from the weights; `bits` stands for a machine that rounds otherwise."""

    def __init__(self, model: nn.Module, bits: float = 0.0, events: list | None = None) -> None:
        self._model, self._bits, self.computed = model, bits, list[int]()
        self._events = [] if events is None else events

    def aggregate(self, step):
        self.computed.append(step)
        self._events.append(f"aggregate {step}")
        weights = self._model.weight.detach().flatten()
        return exact(torch.sin(weights + step) / 10 + self._bits, PLAN)


class Stopping(Sums):
    """Ends at a step."""

    def __init__(self, model, at, bits=0.0, error=Killed):
        super().__init__(model, bits)
        self._at, self._error = at, error

    def aggregate(self, step):
        if step == self._at:
            raise self._error
        return super().aggregate(step)


def opened(folder: Path, every: int = 3, checkpoint_every: int = 4, plan: PrivacyPlan = PLAN, randomness=KEY) -> Steps:
    """The training in a folder, as a process finds it that begins or resumes it."""
    folder.mkdir(exist_ok=True)
    files = Files(folder / "ledger.jsonl", folder / "checkpoints", folder / "releases", folder / "commits")
    return Steps(Small(plan), files, randomness, checkpoint_every=checkpoint_every, commit_every=every)


def weights(steps: Steps) -> list[float]:
    """Of the model."""
    return steps.learner.model.weight.flatten().tolist()


def releases(folder: Path) -> list[tuple[int, str]]:
    """All that is charged."""
    ledger = Ledger.open(folder / "ledger.jsonl")
    return [(step, ledger.release_of(step).digest) for step in ledger.steps]


@contextlib.contextmanager
def dying(at: int | None, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[list[str]]:
    """The process ends before the `at`-th thing that it does to the disk, and does nothing to it afterwards."""
    done: list[str] = []

    def through(name, real, changes=lambda *given, **_: True):
        def call(*given, **more):
            if str(folder) in str(given) or isinstance(given[0], int):
                if changes(*given, **more):
                    if at is not None and len(done) >= at:
                        raise Killed
                    done.append(f"{name} {getattr(given[0], 'name', given[0])}")
            return real(*given, **more)

        return call

    def writes(path, mode="r", *given, **more):
        return isinstance(mode, int) and bool(mode & os.O_CREAT) or isinstance(mode, str) and bool(set(mode) & set("wax"))

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace", "rename", "unlink", "mkdir", "rmdir", "ftruncate"):
            patch.setattr(os, name, through(name, getattr(os, name)))
        patch.setattr(os, "open", through("open", os.open, writes))
        patch.setattr(builtins, "open", through("open", builtins.open, lambda file, mode="r", *_, **__: writes(file, mode)))
        for name in ("unlink", "mkdir"):
            patch.setattr(Path, name, through(name, getattr(Path, name)))
        yield done
