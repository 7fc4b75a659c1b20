"""How the fuzzers try inputs: how many, how long each may take, and what an answer is.

In the normal suite the inputs are the same every time, so that a passing test stays one; in the slow suite there are ten times
as many, drawn anew, and the one that fails is printed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy, tuples

from dpfed.errors import UserError
from tests.patience import strain

SECONDS = 10  # what takes longer hangs, as far as a person can tell
_WAITS = 0.5  # who is neither on a core nor queueing for one for a larger part of the time waits for something
_BACKSTOP = 60  # a call that Python cannot interrupt: every thread's stack is printed, and the process ends


class Hang(BaseException):
    """An input that was not answered in time; not an `Exception`, so nothing takes it for an error of the input."""


@dataclass(frozen=True)
class Effort:
    """How hard a fuzzer tries.

    Attributes:
        factor: how many times as many inputs as the normal suite tries.
    """

    factor: int

    def tries(self, count: int, check: Callable[..., object], *inputs: SearchStrategy) -> None:
        """Calls `check` with `count` inputs (times the factor), drawn from the strategies in turn, each within ten seconds."""

        def timed(drawn: tuple[object, ...]) -> None:
            with answered_in_time():
                check(*drawn)

        settings(
            max_examples=count * self.factor,
            derandomize=self.factor == 1,
            database=None,
            deadline=None,  # ours interrupts an input that hangs; theirs waits for its end
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )(given(tuples(*inputs))(timed))()


# A test that takes `effort` runs twice: as part of the normal suite, and ten times as hard in the slow one.
efforts = pytest.mark.parametrize(
    "effort", [pytest.param(Effort(1), id="seeded"), pytest.param(Effort(10), id="random", marks=pytest.mark.slow)]
)


@contextlib.contextmanager
def answered_in_time(seconds: float = SECONDS) -> Iterator[None]:
    """Raises `Hang` in a block that takes too long; only in the main thread.

    A block that has computed for less, because the machine is busy, gets the rest of its time. One that waits does not.
    """
    started, began, ready = time.process_time(), time.monotonic(), _ready()

    def ring(*_: object) -> None:
        computed, lasted = time.process_time() - started, time.monotonic() - began
        if _ready() - ready < (1 - _WAITS) * lasted or computed > 0.99 * seconds:
            raise Hang(f"no answer within {seconds} s (it computed for {computed:.1f} s in {lasted:.1f} s)")
        signal.setitimer(signal.ITIMER_REAL, seconds - computed)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(_BACKSTOP * strain(), exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _ready() -> float:
    """Seconds that this thread was on a core, or could have been and had to queue for one."""
    try:
        on_a_core, queueing, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except OSError:  # not Linux
        return time.process_time()
    return (int(on_a_core) + int(queueing)) / 1e9


def answer(call: Callable[[], object]) -> object | UserError:
    """What a call returns, or the `UserError` that refuses it; every other error is a failure of the test.

    A refusal is for people: one paragraph that is not empty, without a Python traceback.
    """
    try:
        return call()
    except UserError as error:
        message = str(error)
        assert message.strip() and "Traceback" not in message and len(message) < 5000, repr(message)
        return error
