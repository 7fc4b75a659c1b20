"""Training that learns nothing is within error, as often as the intervals say; a real gain is not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from dpfed.config import parse_config
from dpfed.evaluation.intervals import Outcomes, beyond_noise
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.report.results import within
from dpfed.runs.build import build
from dpfed.runs.noise_alone import noise_alone
from dpfed.training.loop import train
from dpfed.training.optimizers import build_optimizer, take_step
from dpfed.training.transport import InProcess


class Alone:
    """Parts of a run whose steps are noise, started anew with other weights for each run."""

    def __init__(self, tiny, records=60):
        tiny["evaluation"] = {"records": records, "tasks": ["retrieval", "knn"], "bank": 200}
        tiny["optimizer"]["learning_rate"] = 1e-2
        self.parts = build(parse_config(tiny), Randomness.from_seed(0))

    def run(self, seed, steps=10):
        """A run of noise; the changes of its figures with and without what noise alone does."""
        parts, generator = self.parts, torch.Generator().manual_seed(seed)
        vector = TrainableVector(parts.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for module in parts.model.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
        start = vector.gather()
        before = parts.evaluator(parts.model, "untrained", 0)
        optimizer = build_optimizer(parts.config.optimizer, vector.parameters)
        for _ in range(steps):
            noise = torch.randn(vector.numel, generator=generator) * parts.plan.noise_std / parts.plan.divisor
            take_step(optimizer, vector.parameters, vector.split(noise), parts.config.optimizer.learning_rate)
        after = parts.evaluator(parts.model, "trained", steps)
        trained = vector.gather()
        drawn = noise_alone(parts, start)
        assert torch.equal(vector.gather(), trained)  # the run's own model stays as it is
        return [(one.compared(before).change, one.compared(before, drawn).change) for one in after]


@pytest.mark.slow
def test_runs_without_a_signal_are_within_error_in_95_of_100(tiny):
    made = Alone(tiny)
    runs = [made.run(seed) for seed in range(100)]
    outside = [any(not within(wide) for _, wide in run) for run in runs]
    narrow = [any(not within(change) for change, _ in run) for run in runs]
    assert sum(outside) <= 9  # 5 of 100, and what 100 runs allow beyond that (1 in 50)
    assert sum(narrow) > sum(outside)  # what the interval over held-out records alone calls a gain or a loss


def test_a_widened_interval_holds_the_other_and_a_gain_stays(tiny):
    made = Alone(tiny)
    for change, wide in made.run(3, steps=3):
        assert wide[0] <= change[0] and change[1] <= wide[1]
    before, after = (Outcomes(np.arange(100.0) < count, np.arange(100)) for count in (10, 90))
    before, after = (dataclasses.replace(one, values=one.values.astype(float)) for one in (before, after))
    assert not within(after.change_from(before, [0.1, 0.12, 0.09, 0.1]))
    assert within(after.change_from(before, [0.1, 0.9, 0.5, 0.3]))


def test_the_widened_interval_falls_back_to_students():
    """With a change whose own interval is a point, the share of runs of pure noise outside is 5 %."""
    random = np.random.default_rng(1)
    outside = 0
    for _ in range(4000):
        first, *draws = random.normal(0.5, 0.01, 5)
        outside += not within(beyond_noise((first - 0.5, first - 0.5), first - 0.5, draws)) and abs(first - 0.5) > 0
    # Around the untrained figure, which is known, and not around the mean of the draws: less often outside.
    assert 0.02 <= outside / 4000 <= 0.06


def test_closed_form_draws_are_as_long_as_the_release(tiny_moments, tmp_path, monkeypatch):
    tiny_moments["privacy"] = {"noise_multiplier": 900.0}  # hardly anything but noise
    parts, secret = build(parse_config(tiny_moments), Randomness.from_seed(0)), Randomness.from_seed(1)
    start = TrainableVector(parts.model).gather()
    coordinator = parts.learner.coordinator(secret, Ledger.create(tmp_path / "ledger.jsonl", parts.plan))
    train(InProcess([parts.learner.worker(secret)]), coordinator, range(parts.plan.steps))
    released, drawn = TrainableVector(parts.model).gather(), []
    keeping = lambda model, *_: drawn.append(TrainableVector(model).gather()) or []  # noqa: E731
    noise_alone(dataclasses.replace(parts, evaluator=keeping), start)
    rms = [one.square().mean().sqrt().item() for one in (released, *drawn)]
    assert rms[1:] == pytest.approx([rms[0]] * len(drawn), rel=0.2) and not torch.equal(drawn[0], drawn[1])
