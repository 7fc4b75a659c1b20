"""Measures the coordinator's part of a step: noise, digests, ledger and optimizer; steps charged one by one, and in groups.

    python -m benchmarks.coordinator [MILLIONS ...]          prints, and writes benchmarks/results/coordinator.json

Both ways take their steps in turn within one run, on the same sums and the same disk. One by one: each noisy sum is kept on
disk and charged before the next sum is used. In groups: a commit writes the encrypted state and charges all steps since the
last commit. Here, `TOGETHER` steps have one commit, which is ten seconds of training if a step takes half a second. Absolute
seconds mean something only for the machine that is named in the file; ratios are of medians. Seconds of all cores are the time
that a step takes from the gradients that are computed beside it; they do not include waiting for a disk.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.record import write_result
from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.config import OptimizerConfig
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.blocks import block_length
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.checkpoint import Checkpoints, Position
from dpfed.training.commits import Commits
from dpfed.training.coordinator import Coordinator
from dpfed.training.group import Group, Hold
from dpfed.training.releases import Releases

MILLIONS = (0.4, 11.2, 90.0)  # numbers of a sum
TOGETHER = 20  # steps of a group
_WORK = 60.0  # million numbers that are timed for each size, at least two steps


class Way:
    """A coordinator, and a way to charge its steps.

    Args:
        numbers: Number of parameters of the model, and so of numbers in a sum.
        folder: New folder for the coordinator's files.
        in_groups: Whether steps are charged in groups.
    """

    def __init__(self, numbers: int, folder: Path, in_groups: bool) -> None:
        folder.mkdir()
        self.plan = PrivacyPlan.of(100_000, 1024, 16, clip_norm=1.0, steps=1_000, noise_multiplier=1.0, delta=1e-6)
        self.model = nn.ParameterList([nn.Parameter(torch.zeros(numbers))])
        ledger = Ledger.create(folder / "ledger.jsonl", self.plan, block=block_length(numbers))
        self._ledger, self._randomness = ledger, Randomness.from_seed(0)
        releases = Releases(folder / "releases")
        self.runs = Coordinator(self.plan, self.model, OptimizerConfig(), self._randomness, ledger, releases)
        self.runs.ahead, self._releases, self._in_groups = True, releases, in_groups
        Checkpoints(folder / "checkpoints", keep=1).save(Position(0, 0, self.plan.fingerprint), self.model, self.runs)
        if in_groups:
            commits = Commits(folder / "commits", self._randomness, folder / "checkpoints", self.model)
            self.runs.in_groups(Group(self._hold(commits), TOGETHER))

    def _hold(self, commits: Commits) -> Hold:
        def hold(releases: Any, summaries: Any) -> Callable[[], None]:
            position = Position(summaries[-1].done, self._ledger.charged + len(releases), self.plan.fingerprint)
            draft = commits.write(self.runs, position, releases, summaries)
            return lambda: commits.name(draft)

        return hold

    def step(self, number: int) -> dict[str, float]:
        """Takes a step.

        Args:
            number: Number of the step.

        Returns:
            Seconds by the clock: the part that the next sum waits for, the part beside the next sum, and the commit. Seconds of
            all cores: the step, and the commit.
        """
        numel = TrainableVector(self.model).numel
        values = torch.full((numel,), number, dtype=torch.int64)
        total = BoundedSum(values, self.plan.sensitivity, self.plan.groups, unit=self.plan.grid_of().unit)
        busy, started = time.process_time(), time.perf_counter()
        self.runs.apply(number, total)
        applied = time.perf_counter()
        self.runs.wait()
        beside, of_step = time.perf_counter(), time.process_time()
        self.runs.commit()
        ended, at_end = time.perf_counter(), time.process_time()
        self._releases.forget(before=number)  # as checkpoints do
        seconds = {"waited for": applied - started, "beside": beside - applied, "commit": ended - beside}
        return seconds | {"of all cores": of_step - busy, "of all cores, commit": at_end - of_step}


def measured(numbers: int, folder: Path) -> dict[str, Any]:
    """Measures both ways to charge steps, in turn.

    Args:
        numbers: Number of numbers in a sum.
        folder: New folder for all files.
    """
    folder.mkdir()
    ways = {"one by one": Way(numbers, folder / "one", False), "in groups": Way(numbers, folder / "groups", True)}
    steps = max(2, min(20, round(_WORK * 1e6 / numbers)))
    timed: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(steps + 1):
        for name, way in ways.items():
            timed[name].append(way.step(number))
    figures: dict[str, Any] = {"numbers": numbers, "steps": steps}
    for name, rows in timed.items():  # the first one warms up
        figures[name] = {part: statistics.median(row[part] for row in rows[1:]) for part in rows[0]}
    one, groups = figures["one by one"], figures["in groups"]
    one["a step"] = one["waited for"] + one["beside"] + one["commit"]
    groups["a step"] = groups["waited for"] + groups["beside"] + groups["commit"] / TOGETHER
    for way, together in ((one, 1), (groups, TOGETHER)):
        way["a step, of all cores"] = way["of all cores"] + way["of all cores, commit"] / together
    for kind in ("a step", "a step, of all cores"):
        figures[f"{kind}: one by one over in groups"] = one[kind] / groups[kind]
    return figures


def main() -> None:
    """Measures the sizes on the command line, in millions of numbers, or `MILLIONS`."""
    sizes = [float(size) for size in sys.argv[1:]] or list(MILLIONS)
    with tempfile.TemporaryDirectory() as folder:
        by_size = {f"{size:g} million": measured(round(size * 1e6), Path(folder) / f"{size:g}") for size in sizes}
    for name, figures in by_size.items():
        rows = {way: {part: round(1e3 * seconds, 1) for part, seconds in figures[way].items()} for way in list(figures)[2:4]}
        ratios = {key: round(ratio, 2) for key, ratio in figures.items() if "over" in key}
        print(f"{name}: {ratios}; milliseconds {rows}", flush=True)
    print(write_result("coordinator", {"threads": torch.get_num_threads(), "steps of a group": TOGETHER, **by_size}, [0]))


if __name__ == "__main__":
    main()
