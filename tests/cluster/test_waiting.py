"""What Ray takes long for is waited for in sight of the user, tried again, and in the end refused in one sentence."""

import itertools
import re
import sys
import threading
from types import ModuleType

import pytest

from dpfed.cluster.reach import patiently, watched
from dpfed.errors import UserError
from dpfed.progress import Silent


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("dpfed.cluster.reach._AGAIN", 0.01)


def failing(*errors):
    """Fails as often as there are errors, then succeeds."""
    left = iter(errors)

    def attempt():
        for error in left:
            raise error
        return "done"

    return attempt


def wait_for(attempt, watcher, wait=5.0, hopeless=lambda error: False):
    return patiently(attempt, "connecting", watcher, hopeless, "Do this.", wait)


def test_what_fails_at_first_is_tried_again_and_each_reason_is_told_once():
    watcher = Notes()
    early, late = RuntimeError("Traceback ...\nno agent."), TimeoutError("too busy")
    assert wait_for(failing(early, early, late), watcher) == "done"
    assert [re.search(r"\((.*)\)", note)[1] for note in watcher.notes] == ["no agent", "too busy"]
    assert all("trying again for up to 5 seconds" in note for note in watcher.notes)


def test_in_the_end_there_is_one_sentence_with_the_last_reason_and_a_remedy():
    with pytest.raises(UserError, match=r"^connecting failed for 0 seconds, the last time with: timed out\. Do this\.$"):
        wait_for(failing(*[Exception("timed out")] * 10_000), Silent(), wait=0.1)


def test_the_hopeless_is_not_tried_again_and_a_refusal_stays_what_it_is():
    with pytest.raises(UserError, match=r"^connecting failed: wrong token\. Do this\.$"):
        wait_for(failing(Exception("wrong token")), Silent(), hopeless=lambda error: "token" in str(error))
    with pytest.raises(UserError, match="^mine$"):
        wait_for(failing(UserError("mine")), Silent())
    with pytest.raises(KeyboardInterrupt):
        wait_for(failing(KeyboardInterrupt()), Silent())


@pytest.fixture
def ray(monkeypatch):
    """A Ray whose `init` does what a test says."""
    fake = ModuleType("ray")
    fake.inits, fake.shut = [], []
    fake.is_initialized = lambda: False
    fake.shutdown = lambda: fake.shut.append(True)
    fake.exceptions = ModuleType("ray.exceptions")
    fake.exceptions.AuthenticationError = type("AuthenticationError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.exceptions", fake.exceptions)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def behave(*answers):
        queue = iter(answers)

        def init(address, **_):
            fake.inits.append(address)
            answer = next(queue)
            if answer is not None:
                raise answer

        fake.init = init
        return fake

    return behave


def connected(watcher, wait=5.0):
    from dpfed.cluster.launch import _connected

    with _connected(watcher, wait) as own:
        return own


def test_a_head_of_ones_own_that_times_out_is_cleared_away_and_started_again(ray):
    slow = Exception("The current node timed out during startup. The GCS has become overloaded.")
    fake, watcher = ray(ConnectionError("none"), slow, ConnectionError("none"), None), Notes()
    assert connected(watcher) is True
    assert fake.inits == ["auto", "local"] * 2 and len(fake.shut) == 2  # after the failure, and at the end
    assert "timed out during startup" in watcher.notes[0]


def test_a_head_that_is_named_and_starting_is_waited_for_and_never_replaced(ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.5:6379")
    fake = ray(ConnectionError("not yet"), RuntimeError("no raylet"), None)
    assert connected(Notes()) is False and set(fake.inits) == {"auto"}
    fake = ray(*itertools.repeat(ConnectionError("not yet"), 10_000))
    with pytest.raises(UserError, match=r"connecting to Ray at RAY_ADDRESS = '10.0.0.5:6379' failed .* not yet\. Start it"):
        connected(Silent(), wait=0.05)


def test_a_wrong_token_is_refused_at_once(ray):
    fake = ray()
    wrong = fake.exceptions.AuthenticationError("the token does not match")
    ray(wrong)
    with pytest.raises(UserError, match="the token does not match"):
        connected(Silent())


def test_the_operator_is_told_once_of_machines_that_go_and_once_when_they_are_back():
    rooms, looked, watcher = iter([2, 1, None, 0, 2, 2]), threading.Event(), Notes()

    def room():
        if (now := next(rooms, "over")) == "over":
            looked.set()
            return 2
        if now is None:
            raise ConnectionError
        return now

    with watched(2, room, watcher, every=0.01):
        assert looked.wait(10)
    assert watcher.notes == [
        "machines are missing: the cluster has room for 1 of 2 workers, and the run waits for the others",
        "the machines that were missing are back",
    ]
