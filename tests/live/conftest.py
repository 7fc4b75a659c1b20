"""Folders of runs as runs write them, made without training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfed.artifacts.directory import RunDirectory
from dpfed.building.plan import plan_of
from dpfed.config import parse_config
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.journal import Journal

FIGURE = {"name": "image_to_text_R@10", "value": 0.25, "model": "untrained", "split": "test", "protocol": "cosine", "step": 0}


@pytest.fixture
def plan(tiny) -> PrivacyPlan:
    return plan_of(600, parse_config(tiny))


@pytest.fixture
def make(tmp_path, tiny, plan) -> Callable[..., RunDirectory]:
    """Makes a run under `tmp_path / "runs"` that is so many steps on: name, steps done, names of sites of a federation."""

    def made(name: str = "one", done: int = 3, sites: tuple[str, ...] = (), marks: dict | None = None) -> RunDirectory:
        folder = tmp_path / "runs" / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        terms = {"trust": "distributed", "sites": [{"name": site} for site in sites]}
        files = {"terms.json": json.dumps(terms)} if sites else {}
        run = RunDirectory.create(folder, parse_config(tiny), Randomness.from_seed(0), files)
        ledger = Ledger.create(run.ledger, plan, marks)
        run.append(run.metrics, {"step": 0, "evaluation": FIGURE})
        for step in range(done):
            advance(run, ledger, step, sites)
        return run

    return made


def advance(run: RunDirectory, ledger: Ledger, step: int, sites: tuple[str, ...] = ()) -> None:
    """A step, as a run writes it down."""
    if sites:
        journal = Journal(run.journal)
        journal.write("opened", step)
        journal.write("collected", step, arrived=list(sites), missing={}, noise_of_sites=1.0)
    ledger.charge(Release(step, f"{step:032x}"))
    figures = {"learning_rate": 0.003, "noisy_gradient_norm": 4.5 + step}
    run.append(run.metrics, {"step": step + 1, "epsilon": ledger.plan.epsilon(step + 1), **figures})


def finish(run: RunDirectory, privacy: dict, card: str) -> None:
    """A run's papers at its end."""
    run.write(run.card, card)
    figures = [FIGURE, FIGURE | {"value": 0.75, "model": "trained", "step": 6}]
    run.write(run.results, json.dumps({"name": "tiny", "privacy": privacy, "evaluations": figures}))
    run.delete_secrets()


def everything(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
