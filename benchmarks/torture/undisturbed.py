"""Compares a run that met faults with an undisturbed run: parameters, ledger, card and files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.verification import verify
from dpfed.privacy.ledger import Ledger, Release
from dpfed.training.checkpoint import steps_of


@dataclass(frozen=True)
class Outcome:
    """The content of a finished run's folder.

    Attributes:
        weights: Weights of the published model, by file and name.
        releases: Releases that the ledger charged, in order.
        epsilon: Epsilon according to the ledger.
        results: Parts ``privacy`` and ``evaluations`` of results.json.
        files: Paths of all files and folders in the run's folder.
    """

    weights: dict[str, Tensor]
    releases: list[Release]
    epsilon: float
    results: dict[str, Any]
    files: set[str]


def outcome_of(folder: Path) -> Outcome:
    """Reads the content of a finished run's folder."""
    run = RunDirectory.open(folder)
    weights = {
        f"{file.relative_to(run.model)}/{name}": value
        for file in sorted(run.model.rglob("*.safetensors"))
        for name, value in load_file(file).items()
    }
    results = json.loads(run.results.read_text(encoding="utf-8"))
    ledger = Ledger.open(run.ledger)
    return Outcome(
        weights,
        releases_of(ledger),
        ledger.epsilon,
        {"privacy": results["privacy"], "evaluations": results["evaluations"]},
        {str(path.relative_to(folder)) for path in folder.rglob("*")},
    )


def releases_of(ledger: Ledger) -> list[Release]:
    """Returns all releases that a ledger charged, in the order of steps."""
    releases = (ledger.release_of(step) for step in range(ledger.last_step + 1))
    return [release for release in releases if release is not None]


def wrong_at_the_end(folder: Path, undisturbed: Outcome) -> list[str]:
    """Returns all differences between a finished run that met faults and the undisturbed run; empty: there are none."""
    run = RunDirectory.open(folder)
    if not run.finished:
        return ["it did not finish"]
    outcome, wrong = outcome_of(folder), []
    same = set(outcome.weights) == set(undisturbed.weights)
    if not (same and all(torch.equal(value, undisturbed.weights[name]) for name, value in outcome.weights.items())):
        wrong.append("other parameters")
    if outcome.releases != undisturbed.releases:
        pairs = zip(outcome.releases, undisturbed.releases, strict=False)
        first = next((one.step for one, other in pairs if one != other), "the end")
        wrong.append(f"other releases from {first} on: {len(outcome.releases)}, undisturbed {len(undisturbed.releases)}")
    if outcome.epsilon < undisturbed.epsilon:
        wrong.append(f"epsilon {outcome.epsilon}, undisturbed {undisturbed.epsilon}")
    if outcome.results != undisturbed.results:
        wrong.append("other results")
    wrong += [f"left behind: {name}" for name in sorted(outcome.files - undisturbed.files)]
    wrong += [f"missing: {name}" for name in sorted(undisturbed.files - outcome.files)]
    wrong += [f"{check.what}: {check.wrong}" for check in verify(run.card, folder) if check.wrong]
    return wrong


def wrong_on_the_way(folder: Path, undisturbed: Outcome) -> tuple[int, list[str]]:
    """Checks a run that has just died: files may contain the results of charged steps only.

    Two exceptions are not errors. In a federation, a noisy sum is kept before it is charged, but not used. And a commit, which
    is encrypted, may be half written.

    Returns:
        Number of charged steps, and all that is wrong.
    """
    run = RunDirectory(folder)
    if not run.ledger.is_file():
        kept = *run.releases.glob("*.f32"), *run.commits.glob("*")
        used = [path.name for path in (*run.checkpoints.glob("*.safetensors"), *kept)]
        return 0, [f"no ledger, and there is {name}" for name in used]
    ledger, wrong = Ledger.open(run.ledger), []
    if releases_of(ledger) != undisturbed.releases[: ledger.charged]:
        wrong.append("the ledger is not the beginning of the undisturbed one")
    steps = {path.name: steps_of(path) for path in run.checkpoints.glob("step-*.safetensors")}
    steps |= {path.name: int(path.name.split("-")[0]) for path in run.releases.glob("0*.f32")}
    steps |= {path.name: int(path.stem) for path in run.commits.glob("*.state")}
    steps |= {f"metrics.jsonl, step {line['step']}": line["step"] for line in run.metric_lines()}
    wrong += [f"{name} is of a step that is not paid for" for name, step in steps.items() if step > ledger.charged]
    return ledger.charged, wrong
