"""How fast a run goes is what was seen of it, and nothing is made up."""

import os
import time

import pytest

from dpfed.live.figures import overview
from dpfed.live.pace import pace_of_files
from dpfed.live.scan import Scan
from dpfed.privacy.ledger import Ledger, Release
from dpfed.progress import Throughput, duration


def test_a_step_takes_what_the_last_ones_took():
    throughput = Throughput()
    assert throughput.seconds is None and throughput.left(10) is None
    throughput.see(3, 100.0)
    assert throughput.seconds is None
    throughput.see(3, 104.0)  # nothing new
    throughput.see(5, 110.0)
    assert throughput.seconds == 5.0 and throughput.left(4) == 20.0 and throughput.last == 110.0


def test_waits_and_steps_that_are_taken_again_do_not_count():
    throughput = Throughput()
    for step, at in enumerate((0.0, 1.0, 2.0, 62.0, 63.0, 64.0)):  # at step 3 a site let the others wait
        throughput.see(step, at)
    assert throughput.left(10) == 10
    throughput = Throughput()
    throughput.see(5, 100.0)
    throughput.see(5, 130.0, again=3)
    throughput.see(6, 131.0, again=3)
    assert throughput.left(10) == 10


@pytest.mark.parametrize("later", [(2, 120.0), (6, 90.0)])
def test_a_run_that_was_set_back_begins_anew(later):
    throughput = Throughput()
    throughput.see(4, 100.0)
    throughput.see(5, 110.0)
    throughput.see(*later)
    assert throughput.seconds is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (42.4, "42 s"), (600, "10 min"), (7200, "2.0 h"), (400_000, "4 days")]
)
def test_durations_in_words(seconds, text):
    assert duration(seconds) == text


def written(folder, times):
    folder.mkdir(exist_ok=True)
    for name, at in times.items():
        (folder / name).touch()
        os.utime(folder / name, (at, at))


def test_one_look_sees_the_pace_by_the_times_of_files(make):
    run = make(done=5)
    written(run.checkpoints, {"step-00000000.safetensors": 900.0, "step-00000002.safetensors": 1000.0})
    written(run.releases, {"00000002-ab.f32": 1002.0, "00000003-ab.f32": 1004.0, ".00000004-ab.f32.partial": 1.0})
    os.utime(run.ledger, (1006.0, 1006.0))
    with run.locked():
        seen = Scan(run.path, clock=lambda: 1e10).all()[0]
    assert (seen.state, seen.seconds, seen.left, seen.last) == ("running", 2.0, 2.0, 1006.0)


def test_an_interruption_is_no_pace(make):
    run = make(done=3)
    ledger = Ledger.open(run.ledger)
    ledger.note_resumed(2)
    ledger.note_replay(ledger.release_of(2))
    ledger.charge(Release(3, "ab"))
    ledger.charge(Release(4, "ab"))
    written(run.releases, {"00000001-ab.f32": 1000.0, "00000002-ab.f32": 1002.0, "00000003-ab.f32": 9000.0})
    os.utime(run.ledger, (9002.0, 9002.0))
    assert list(Ledger.open(run.ledger).repeated_after) == ledger.repeated_after == [2, 2]
    with run.locked():
        assert Scan(run.path).all()[0].seconds == 2.0
    throughput = pace_of_files(run.path, Ledger.open(run.ledger))
    assert list(throughput._took) == [2.0]  # of steps 1 to 2; the interruption is left out


def test_a_run_whose_process_died_here_is_stopped_at_once(make):
    run = make(done=3)
    with run.locked():
        assert Scan(run.path).all()[0].state == "running"
    seen = Scan(run.path).all()[0]
    assert seen.state == overview(seen)[0].shown == "stopped"
    (run.path / ".lock-holder").write_text("another machine")  # whose locks are not seen here
    assert Scan(run.path).all()[0].state == "running"
    seen = Scan(run.path, clock=lambda: 1e10).all()[0]
    assert seen.state == "stopped" and "on another machine" in overview(seen)[0].shown


@pytest.mark.parametrize(("set_back", "state"), [(5.0, "running"), (3600.0, "stopped")])
def test_a_clock_set_back_revives_no_run_of_another_machine(make, set_back, state):
    """Clocks of two machines may differ by seconds."""
    run = make(done=3)
    (run.path / ".lock-holder").write_text("another machine")
    assert Scan(run.path, clock=lambda: time.time() - set_back).all()[0].state == state


def test_before_the_first_step_nobody_knows_how_many_work(make):
    assert Scan(make(done=0).path).all()[0].run_state.kind == "before the first step"
    assert Scan(make("two", done=1).path).all()[0].run_state.kind == "one worker"
    run = make("three", done=0)
    ledger = Ledger.open(run.ledger)
    ledger.note_world_size(2)
    ledger.charge(Release(0, "ab"))
    assert Scan(run.path).all()[0].run_state.kind == "cluster of 2 workers"
