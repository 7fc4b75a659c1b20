"""What a log says of progress: how far, how long it will take, and how long it took."""

import io
import time

from rich.console import Console

from dpfed.console.terminal import _lines


def test_a_line_has_the_time_left_of_an_ordinary_step_and_the_time_so_far(monkeypatch):
    out, now = io.StringIO(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    advance = _lines(Console(file=out, width=40), "steps", 40)
    advance(0)
    for step in range(1, 31):
        now[0] += 100.0 if step == 15 else 1.0  # a wait that is over
        advance(step)
    assert out.getvalue().splitlines()[:2] == ["steps: 40", "steps: 15 of 40, about 25 s left, 2 min so far"]
    assert out.getvalue().splitlines()[-1] == "steps: 30 of 40, about 10 s left, 2 min so far"
