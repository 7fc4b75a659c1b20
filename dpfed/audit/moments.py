"""Attacks runs of private moments: repeats small runs with and without a canary, whose features no other record shares.

The canary's features are orthogonal to those of all other records. The auditor knows all other records and the sums before the
noise, and sees the noisy sums of both steps. Engine, noise, coordinator and ledger are the code of a real run. Only the tower
is artificial: each picture encodes a number, and the tower maps this number to a unit vector.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dpfed.audit.canaries import SIDE, CanaryModel, write_canaries
from dpfed.audit.leaving import ReleasesInMemory
from dpfed.audit.under_test import workers
from dpfed.config import ModelConfig, ObjectiveConfig, parse_config
from dpfed.models.basis import random_bases
from dpfed.models.building import build_model
from dpfed.models.contrastive import SimCLRModel
from dpfed.models.moment_heads import MomentNoise
from dpfed.models.moments import MomentHeads, give_heads
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import Parts, build
from dpfed.runs.closed_form import layout_of
from dpfed.training.loop import train
from dpfed.training.transport import InProcess

_MODEL: dict[str, Any] = {"kind": "image", "width": 4, "embedding": 4, "head_hidden": 4}
_FILLERS, _WIDTH = 24, 8


class CanaryTower(nn.Module):
    """A tower that maps a record's number to features: canaries point along the last axis, fillers along the other axes."""

    features_dim = _WIDTH

    def __init__(self) -> None:
        super().__init__()
        self._reader = CanaryModel(_FILLERS, 1, "one")
        self.register_buffer("unused", torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        """Returns the features of images, ``(n, 3, H, W)`` -> ``(n, features_dim)``."""
        number, _ = self._reader.read(images)
        axis = torch.where(number >= _FILLERS, _WIDTH - 1, number % (_WIDTH - 1)).long()
        return nn.functional.one_hot(axis, _WIDTH).float()


@dataclass(frozen=True)
class MomentTrial:
    """A small run of private moments, whose heads follow in closed form; ready to be attacked.

    Attributes:
        parts: Parts of the small run. Its tower is a `CanaryTower`.
        world_size: Number of workers that share the records.
        folder: Folder for records, ledgers and starting weights.
    """

    parts: Parts
    world_size: int
    folder: Path

    @classmethod
    def build(cls, plan: PrivacyPlan, folder: Path, world_size: int = 1) -> MomentTrial:
        """Makes a small run that imitates a given run.

        Sigma, the kind of the noise and each step's fraction of the privacy, measured as 1 / sigma^2, are those of the given
        run.

        Args:
            plan: Plan of the given run.
            folder: Folder for the records, ledgers and starting weights of the small run.
            world_size: Number of workers that share the records.
        """
        copies = plan.sampling.per_unit + 1 if plan.promise.unit == "user" else 1
        store = write_canaries(folder / "records", _FILLERS, 1, copies)
        start = folder / "start.safetensors"
        with torch.random.fork_rng(devices=[]):
            save_file(build_model(ModelConfig(**_MODEL), ObjectiveConfig(), size=SIDE).state_dict(), start)
        units = {"unit": "user", "per_unit": plan.sampling.per_unit} if plan.promise.unit == "user" else {}
        noise = {"noise_multiplier": plan.noise.multiplier, "noise": plan.noise.kind, "accountant": plan.promise.accountant}
        tree = {
            "name": "audit",
            "data": {"source": "store", "path": str(store.path), "size": SIDE},
            "model": {**_MODEL, "start": str(start)},
            "bounding": {"method": plan.bounding.method_name, "options": {"views": 2}},
            "privacy": {**noise, "delta": plan.promise.delta, **units},
            "training": {"device": "cpu"},
            "evaluation": {"split": "none"},
        }
        parts = build(parse_config(tree), Randomness.from_seed(0))
        layout = layout_of(parts.plan, _WIDTH, 1)
        model = SimCLRModel(CanaryTower(), nn.Identity()).requires_grad_(False)
        of_moments = MomentNoise(parts.plan.sampling.records, plan.noise_std)
        give_heads(model, MomentHeads(layout, of_moments, random_bases((_WIDTH,), _WIDTH, True), True))
        return cls(parts.with_learner(model=model), world_size, folder)

    @property
    def plan(self) -> PrivacyPlan:
        """Plan of the small run."""
        return self.parts.plan

    def workers(self, there: bool) -> InProcess:
        """Makes all workers, with the canary among their records or without it."""
        rows = np.arange(0 if there else len(self.parts.store) - _FILLERS, len(self.parts.store))
        return workers(self.parts, rows, self.world_size, Randomness.fresh().for_ranks())

    def moved(self) -> float:
        """Measures how far the canary moves a sum: the largest L2 change over both steps and four settings of the means.

        The first step releases the means, and the second step's sum depends on them. Each change is multiplied by the plan's
        sensitivity, and divided by the sensitivity of its step. The result is infinity if a sum is not finite.
        """
        most, sides = 0.0, [self.workers(there) for there in (True, False)]
        for seed in range(4):
            self._set(seed * torch.randn(self._released.numel(), generator=torch.Generator().manual_seed(seed)))
            for step in range(self.plan.steps):
                with_, without = (side.aggregate(step).numbers() for side in sides)
                length = (with_ - without).norm().item()  # of sums that are not finite: infinity, as `max` would drop NaN
                most = max(most, length / self.plan.sensitivity_of(step) if math.isfinite(length) else math.inf)
        return most * self.plan.sensitivity

    def scores(self, tries: int) -> tuple[np.ndarray, np.ndarray]:
        """Repeats the small run, every other time with the canary.

        Returns:
            Presence of the canary, ``(tries,)`` bool, and logarithms of likelihood ratios, ``(tries,)``.
        """
        sides = {there: self.workers(there) for there in (True, False)}
        coins = np.arange(tries) % 2 == 0
        return coins, np.array([self._score(sides, bool(coin)) for coin in coins])

    def _score(self, sides: dict[bool, InProcess], there: bool) -> float:
        self._set(torch.zeros_like(self._released))
        kept, path = ReleasesInMemory(), self.folder / f"{secrets.token_hex(8)}.jsonl"
        coordinator = self.parts.learner.coordinator(Randomness.fresh(), Ledger.create(path, self.plan), kept)
        total = 0.0
        for step in range(self.plan.steps):
            with_, without = (sides[side].aggregate(step).numbers() for side in (True, False))
            train(sides[there], coordinator, [step])
            shift = with_ - without
            total += (shift @ (kept.taken() - without) - shift.square().sum() / 2).item() / self.plan.noise_std**2
        path.unlink()
        return total if math.isfinite(total) else math.inf

    @property
    def _released(self) -> Tensor:
        heads = self.parts.model.moments
        assert isinstance(heads, MomentHeads)
        return heads.released

    @torch.no_grad()
    def _set(self, released: Tensor) -> None:
        self._released.copy_(released)
