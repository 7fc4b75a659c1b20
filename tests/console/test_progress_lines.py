"""What a log says of progress: how far, how long it will take, and how long it took."""

import io
import time

from rich.console import Console

from dpfed.console.terminal import _lines
from dpfed.progress import signs_of_life


def test_a_line_has_an_ordinary_steps_time_left_and_time_so_far(monkeypatch):
    out, now = io.StringIO(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    advance = _lines(Console(file=out, width=40), "steps", 40)
    advance(0)
    for step in range(1, 31):
        now[0] += 100.0 if step == 15 else 1.0  # a wait that is over
        advance(step)
    assert out.getvalue().splitlines()[:2] == ["steps: 40", "steps: 15 of 40, about 25 s left, 2 min so far"]
    assert out.getvalue().splitlines()[-1] == "steps: 30 of 40, about 10 s left, 2 min so far"


def test_signs_of_life_become_rarer():
    told = []
    with signs_of_life(told.append, "starting", every=0.05, beside=lambda: "; free: 2 CPUs"):
        time.sleep(1.2)
    assert 3 <= len(told) <= 5  # after 0.05, 0.1, 0.2, 0.4 and 0.8 s
    assert told[0] == "starting: still running after 0 seconds; free: 2 CPUs"
