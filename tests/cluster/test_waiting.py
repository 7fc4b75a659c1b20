"""What Ray takes long for is waited for in sight of the user, tried again, and in the end refused in one sentence."""

import asyncio
import itertools
import re
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

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


def test_workers_that_start_slowly_are_waited_for_in_sight_until_one_speaks():
    from dpfed.cluster.relay import deliver_all

    watcher, ended, delivered = Notes(), threading.Event(), []
    events = itertools.chain([None] * 30, [("note", "reading")], [None] * 30)

    def take():
        time.sleep(0.01)
        event = next(events, None)
        if event is None and delivered and next(events, None) is None:
            ended.set()
        return event

    deliver_all(take, lambda *event: delivered.append((event, len(watcher.notes))), ended, watcher, every=0.05)
    (event, told), notes = delivered[0], watcher.notes
    assert event == ("note", "reading") and len(delivered) == 1
    assert 3 <= told == len(notes) and notes[0].startswith("starting workers: still running after")


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


@pytest.fixture
def jobs(ray, monkeypatch):
    """A head that answers submissions as a test says."""
    fake = ray()
    fake.job_submission = ModuleType("ray.job_submission")
    monkeypatch.setitem(sys.modules, "ray.job_submission", fake.job_submission)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://elsewhere")  # to be put back after the test
    submitted = []

    def behave(*answers):
        queue = iter(answers)

        class Client:
            def __init__(self, address):
                self.address = address

            def submit_job(self, **given):
                submitted.append(given)
                answer = next(queue)
                if answer is not None:
                    raise answer(given["submission_id"])

        fake.job_submission.JobSubmissionClient = Client
        return submitted

    return behave


def submit(watcher, wait=5.0):
    from dpfed.cluster.submit import submit

    return submit(["imagenet", "--set", "name=a b"], "http://head:8265", SimpleNamespace(__str__=lambda: "."), watcher, wait)


def status(code, text):
    return lambda job: RuntimeError(f"Request failed with status code {code}: {text.format(job=job)}.")


def test_a_submission_before_the_agent_is_up_is_made_again_under_the_same_name(jobs):
    no_agent = status(500, "No available agent to submit job, please try again later.")
    there = status(400, "Job with submission_id {job} already exists")
    submitted, watcher = jobs(lambda job: ConnectionError("refused"), no_agent, there), Notes()
    client, job = submit(watcher)
    assert client.address == "http://head:8265" and {given["submission_id"] for given in submitted} == {job}
    assert submitted[0]["entrypoint"] == "python -m dpfed pretrain --cluster ray imagenet --set 'name=a b'"
    assert "No available agent" in watcher.notes[1]


def test_a_token_that_the_head_does_not_take_is_a_sentence_at_once(jobs, monkeypatch):
    jobs()
    ray = sys.modules["ray"]

    def refuse(address):
        raise ray.exceptions.AuthenticationError("invalid token\nEnsure that the token is in a local file")

    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", refuse)
    with pytest.raises(UserError, match=r"^the Ray cluster at http://head:8265 does not take this machine's token") as refused:
        submit(Silent())
    assert "--wait" not in str(refused.value)


def test_a_head_that_dies_while_a_job_is_followed_is_a_sentence_that_says_how_to_go_on():
    from dpfed.cluster.submit import _follow

    class Client:
        async def tail_job_logs(self, job):
            yield "step 1\n"
            raise RuntimeError("WebSocket connection closed")

    with pytest.raises(UserError, match=r"connection to the cluster is lost .*--resume"):
        asyncio.run(_follow(Client(), "dpfed-1"))


def test_a_head_that_vanishes_without_a_word_is_noticed_and_a_busy_one_is_not_given_up():
    from dpfed.cluster.submit import _follow

    answers = iter([RuntimeError("status code 500"), SimpleNamespace(), ConnectionError("no route to host")])

    class Client:
        async def tail_job_logs(self, job):
            yield "step 1\n"
            await asyncio.Event().wait()

        def get_job_info(self, job):
            if isinstance(answer := next(answers), Exception):
                raise answer
            return answer

    with pytest.raises(UserError, match=r"connection to the cluster is lost \(no route to host\).*--resume"):
        asyncio.run(_follow(Client(), "dpfed-1", every=0.01))
    assert next(answers, None) is None


@pytest.mark.parametrize(
    "address", ["head:8265", "http://", "http://:8265", "http://head:99999", "http://head:0", "http://head:x"]
)
def test_what_is_no_address_is_refused_before_ray_is_loaded(monkeypatch, address):
    from dpfed.cluster.submit import main

    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    with pytest.raises(UserError, match="expected where the cluster's dashboard listens"):
        main(["imagenet"], address)


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
