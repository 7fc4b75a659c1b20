"""Errors, Ctrl-C and SIGTERM: what they say, and what a resumed training finds."""

import os
import signal
import traceback

import pytest

from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger
from tests.training.small_steps import Stopping, Sums, opened, releases, weights


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    steps = opened(folder)
    steps.run(Sums(steps.learner.model))
    return weights(steps), releases(folder)


SECRET = "a message that depends on the parameters"


@pytest.mark.parametrize("error", [UserError(SECRET), RuntimeError(SECRET), KeyboardInterrupt(), SystemExit(143)], ids=type)
def test_an_error_is_said_when_the_steps_before_it_are_charged(tmp_path, undisturbed, error):
    folder = tmp_path / "run"
    steps = opened(folder, 100, 100)
    with pytest.raises(type(error)):
        steps.run(Stopping(steps.learner.model, 5, error=error))
    assert Ledger.open(folder / "ledger.jsonl").charged == 5
    again = opened(folder, 100, 100)
    sums = Sums(again.learner.model)
    again.run(sums)
    assert sums.computed == [5, 6, 7, 8] and (weights(again), releases(folder)) == undisturbed


def test_an_error_says_nothing_where_its_steps_cannot_be_charged(tmp_path, monkeypatch):
    steps = opened(tmp_path / "run", 100, 100)

    def full(*_):
        raise OSError(28, "No space left")

    monkeypatch.setattr(steps.ledger, "charge", full)
    with pytest.raises(OSError, match="No space") as caught:
        steps.run(Stopping(steps.learner.model, 5, error=RuntimeError(SECRET)))
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_optimizers_step(tmp_path, monkeypatch, undisturbed, number):
    folder = tmp_path / "run"
    steps = opened(folder, 100, 100)
    take, taken = steps.coordinator.optimizer.step, []

    def interrupted():
        take()
        taken.append(0)
        if len(taken) == 4:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(steps.coordinator.optimizer, "step", interrupted)
    usual = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            steps.run(Sums(steps.learner.model))
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, usual)
    again = opened(folder, 100, 100)
    assert (again.start, again.ledger.charged) == (4, 4)
    again.run(Sums(again.learner.model))
    assert (weights(again), releases(folder)) == undisturbed


def test_an_error_within_an_optimizers_step_charges_it(tmp_path, monkeypatch, undisturbed):
    """No state is left that could be kept: the steps are computed again, and must come out the same."""
    folder = tmp_path / "run"
    steps = opened(folder, 100, 100)
    take, taken = steps.coordinator.optimizer.step, []
    monkeypatch.setattr(steps.coordinator.optimizer, "step", lambda: (taken.append(take()), 1 / (4 - len(taken))))
    with pytest.raises(ZeroDivisionError):
        steps.run(Sums(steps.learner.model))
    charged = releases(folder)
    assert len(charged) == 4 and not list((folder / "commits").glob("*"))
    other = opened(folder, 100, 100)
    with pytest.raises(UserError, match="training-step-differs"):
        other.run(Sums(other.learner.model, 0.25))
    again = opened(folder, 100, 100)
    again.run(Sums(again.learner.model))
    assert (weights(again), releases(folder)) == undisturbed and releases(folder)[:4] == charged
    assert Ledger.open(folder / "ledger.jsonl").replays == 4
