"""What a user's callback sees of a run, and of one that was interrupted."""

import json

import pytest

import dpfed
from dpfed.callbacks import StepSummary


class Keeps(dpfed.Callback):
    """Keeps what a tracker would: a row a step, and drops those that come again."""

    every = 1

    def __init__(self, stops=None):
        self.rows, self.begun, self.figures, self.ends, self._stops = [], [], [], 0, stops

    def on_begin(self, done):
        self.begun.append(done)
        self.rows = [row for row in self.rows if row[0] <= done]

    def on_step(self, step):
        self.rows.append((step.done, step.epsilon, step.noisy_gradient_norm))
        if step.done == self._stops:
            self._stops = None
            raise KeyboardInterrupt

    def on_evaluation(self, figures):
        self.figures += figures

    def on_end(self):
        self.ends += 1


@pytest.fixture
def config(tiny):
    tiny["privacy"] |= {"steps": 6, "seed": 3}
    tiny["training"] |= {"checkpoint_every": 4}
    return dpfed.parse_config(tiny)


@pytest.mark.long
def test_each_step_is_seen_once_with_what_it_spent(config, tmp_path):
    keeps = Keeps()
    run = dpfed.pretrain(config, tmp_path / "run", callbacks=[keeps])
    lines = [line for line in map(json.loads, run.metrics.read_text().splitlines()) if "evaluation" not in line]
    assert keeps.rows == [(line["step"], line["epsilon"], line["noisy_gradient_norm"]) for line in lines]
    assert [row[0] for row in keeps.rows] == [1, 2, 3, 4, 5, 6] and keeps.begun == [0] and keeps.ends == 1
    assert {figure.model for figure in keeps.figures} == {"untrained", "trained"}


@pytest.mark.long
def test_steps_behind_a_checkpoint_come_again_with_their_numbers(config, tmp_path):
    whole, interrupted = Keeps(), Keeps(stops=5)
    dpfed.pretrain(config, tmp_path / "whole", callbacks=[whole])
    with pytest.raises(KeyboardInterrupt):
        dpfed.pretrain(config, tmp_path / "run", callbacks=[interrupted])
    before = list(interrupted.rows)
    dpfed.resume(tmp_path / "run", callbacks=[interrupted])
    assert interrupted.begun == [0, 4] and interrupted.ends == 1
    assert interrupted.rows == whole.rows and before == whole.rows[:5]


@pytest.mark.long
def test_each_callback_hears_of_the_end_once(config, tmp_path):
    """Even if another one fails at the end. The run is finished, so none hears that it has stopped."""
    heard = []

    class Hears(dpfed.Callback):
        def __init__(self, fails=False):
            self.fails = fails

        def on_end(self):
            heard.append("end")
            if self.fails:
                raise ValueError("the tracker is gone")

        def on_stop(self):
            heard.append("stop")

    with pytest.raises(ValueError, match="tracker is gone"):
        dpfed.pretrain(config, tmp_path / "run", callbacks=[Hears(), Hears(fails=True), Hears()])
    assert heard == ["end", "end", "end"] and (tmp_path / "run" / "results.json").is_file()


@pytest.mark.parametrize(("every", "seen"), [(None, [2, 4, 6, 8, 10]), (3, [3, 6, 9, 10]), (1, list(range(1, 11)))])
def test_how_often_a_step_is_seen(every, seen, monkeypatch):
    monkeypatch.setattr("dpfed.callbacks.callback._REPORTS", 5)
    callback = dpfed.Callback()
    callback.every = every
    assert [done for done in range(1, 11) if callback.is_due(StepSummary(done - 1, 10, 0.1, 1.0))] == seen


def test_the_package_shows_its_public_names():
    assert {"Callback", "pretrain", "resume", "PrivacyPlan", "RecordStore"} <= set(dir(dpfed))
