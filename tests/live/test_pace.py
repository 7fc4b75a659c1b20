"""How fast a run goes is what was seen of it, and nothing is made up."""

import pytest

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
