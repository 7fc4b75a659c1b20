"""What is done after the noise is a list: a new processor is one class. Runs and checkpoints know nothing of it."""

import contextlib
import json

import pytest
import torch
from safetensors.torch import load_file

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.evaluation.evaluator import Evaluator
from dpfed.runs.pretraining import pretrain, resume
from dpfed.runs.reevaluation import evaluate_run
from dpfed.training import coordinator as coordinators
from dpfed.training import learner as trainers
from dpfed.training.checkpoint import Checkpoints
from dpfed.training.post_processing import MovingAverage, PostProcessor, averaged_weights, load_states, states_of
from tests.killed import killed


class Filter(PostProcessor):
    """A low-pass filter of the noisy gradient, which remembers the one before."""

    name = "filter"

    def __init__(self, size):
        self.before = torch.zeros(size)

    def gradient(self, step, gradient):
        self.before = 0.5 * self.before + 0.5 * gradient
        return self.before.clone()

    def state_dict(self):
        return {"before": self.before}

    def load_state_dict(self, state):
        self.before = state["before"].clone()


class LastTwo(PostProcessor):
    """The mean of the weights after the last two steps."""

    name = "last_two"

    def __init__(self, average):
        self._vector, self.weights = average._vector, average._weights.repeat(2, 1)

    def updated(self, step):
        self.weights[step % 2] = self._vector.gather()

    def averaged(self, weights):
        return self.weights.mean(0)

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"].clone()


@pytest.fixture
def with_others(monkeypatch):
    """Runs have both of these, and no other processor."""

    def chosen(config, model):
        average = MovingAverage(model, 0.5)
        return [Filter(len(average._weights)), LastTwo(average)]

    for module in (coordinators, trainers):
        monkeypatch.setattr(module, "post_processors", chosen)


def weights_of(run):
    return load_file(run.model / "model.safetensors")


@pytest.mark.long
def test_a_run_with_processors_resumes_to_the_same_bits(tiny, tmp_path, with_others):
    config = parse_config({**tiny, "privacy": {**tiny["privacy"], "seed": 3}})
    whole = pretrain(config, tmp_path / "whole")
    with killed(coordinators.Coordinator, "apply", 6, error=KeyboardInterrupt):
        pretrain(config, tmp_path / "again")
    run = resume(tmp_path / "again")
    assert all(torch.equal(value, weights_of(run)[name]) for name, value in weights_of(whole).items())
    measured = {(one.name, one.model): one.value for one in evaluate_run(run.path) if one.step in (0, 6)}
    figures = json.loads(whole.results.read_text())["evaluations"]
    noted = {(one["name"], one["model"]): one["value"] for one in figures if one["step"] in (0, 6)}
    assert measured == pytest.approx(noted)


@pytest.mark.long
def test_served_weights_are_measured_and_published(tiny, tmp_path, monkeypatch):
    """On the way as well as at the end; training goes on with its own."""
    config = parse_config({**tiny, "evaluation": {**tiny["evaluation"], "every": 2}})
    made, seen, evaluate = [], [], Evaluator.__call__

    def chosen(config, model):
        made.append(LastTwo(MovingAverage(model, 0.5)))
        return [made[-1]]

    def evaluated(self, model, which, step):
        if which == "trained":
            seen.append((step, torch.equal(made[0]._vector.gather(), made[0].averaged(None))))
        return evaluate(self, model, which, step)

    monkeypatch.setattr(coordinators, "post_processors", chosen)
    monkeypatch.setattr(Evaluator, "__call__", evaluated)
    run = pretrain(config, tmp_path / "run")
    assert seen[:3] == [(2, True), (4, True), (6, True)]  # behind them, models that noise alone may have made
    vector, published = made[0]._vector, weights_of(run)
    averaged = zip(vector.names, vector.split(made[0].averaged(None)), strict=True)
    assert all(torch.equal(published[name], part) for name, part in averaged)
    assert not torch.equal(made[0].averaged(None), made[0].weights[-1])


@pytest.mark.long
def test_no_processor_changes_what_is_released(tiny, tmp_path, monkeypatch):
    config = parse_config({**tiny, "privacy": {**tiny["privacy"], "steps": 2, "seed": 3}, "evaluation": {"split": "none"}})

    class Nothing(PostProcessor):
        name = "nothing"

        def gradient(self, step, gradient):
            return torch.zeros_like(gradient)

    plain = pretrain(config, tmp_path / "plain")
    monkeypatch.setattr(coordinators, "post_processors", lambda config, model: [Nothing()])
    still = pretrain(config, tmp_path / "still")
    first = [RunDirectory(run.path).ledger.read_text().splitlines()[1] for run in (plain, still)]
    assert first[0] == first[1]
    assert len(list(Checkpoints(still.checkpoints, 3).paths())) > 1
    assert any(not torch.equal(weights_of(plain)[name], value) for name, value in weights_of(still).items())


def test_served_weights_are_in_the_model_inside_the_block_alone():
    model = torch.nn.Linear(3, 1, bias=False)
    average = MovingAverage(model, 0.5)
    averaged, trained = model.weight.detach().clone(), torch.ones(1, 3)
    model.weight.data.copy_(trained)
    for end in (None, KeyboardInterrupt):
        with contextlib.suppress(KeyboardInterrupt), averaged_weights(model, [average]):
            assert torch.equal(model.weight, averaged)
            if end:
                raise end
        assert torch.equal(model.weight, trained)


def test_a_state_goes_back_to_its_own_processor_only():
    one, other = Filter(3), Filter(3)
    one.before += 2
    load_states([other], states_of([one]), "file")
    assert torch.equal(other.before, one.before)
    second = Filter(3)
    second.name = "second"  # whose state has the same names
    states = states_of([one, second])
    for pair in ([Filter(3), second], [second, Filter(3)]):
        load_states(pair, states, "file")
        assert {processor.name: processor.before.tolist() for processor in pair} == {"filter": [2.0] * 3, "second": [0.0] * 3}
    for processors, states in (([], states_of([one])), ([Filter(4)], states_of([one])), ([one], {})):
        with pytest.raises(UserError, match=r"^file .* contains (no averages|filter),.*\[optimizer-ema"):
            load_states(processors, states, "file")
