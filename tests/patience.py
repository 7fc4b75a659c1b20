"""Waits for other processes and threads that grow with the load of the machine.

Whoever waits gives the seconds that suffice on a quiet machine. On a busy one each process has a share of a core, so seconds
pass more slowly.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

MOST = 20.0  # times as long: the ceiling
_LOOKS = 1.0  # seconds after which the load is read again
_READS = 0.5  # seconds after which somebody who waits for a process looks at the clock


def strain() -> float:
    """How many times as long as on a quiet machine work takes: the load of the last minute for each core."""
    try:
        load = os.getloadavg()[0]
    except OSError:  # the system does not say
        return 1.0
    return min(max(load / (os.cpu_count() or 1), 1.0), MOST)


def at_most(seconds: float) -> float:
    """Seconds for a call that takes one number and cannot look again: twice what the load asks for now, which may grow."""
    return seconds * min(2 * strain(), MOST)


class Patience:
    """Ends after so many seconds of a quiet machine.

    Args:
        seconds: which suffice there.
    """

    def __init__(self, seconds: float) -> None:
        self._left, self._seen, self._strain, self._read = seconds, time.monotonic(), strain(), time.monotonic()

    @property
    def left(self) -> float:
        """Seconds of a quiet machine; at the end zero."""
        now = time.monotonic()
        if now - self._read >= _LOOKS:
            self._strain, self._read = strain(), now
        self._left -= (now - self._seen) / self._strain
        self._seen = now
        return max(self._left, 0.0)

    @property
    def ended(self) -> bool:
        """Whether they have passed."""
        return self.left == 0.0


def until(condition: Callable[[], Any], seconds: float, pause: float = 0.01) -> Any:
    """Waits until the condition holds, and returns its value; after so many seconds of a quiet machine, whatever it is then."""
    patience = Patience(seconds)
    while not (value := condition()) and not patience.ended:
        time.sleep(pause)
    return value


def exit_code(process: subprocess.Popen, seconds: float) -> int:
    """The exit code of a process; one that has not ended after so many seconds of a quiet machine raises `TimeoutExpired`."""
    patience = Patience(seconds)
    while True:
        try:
            return process.wait(min(_READS, max(patience.left, 0.01)))
        except subprocess.TimeoutExpired:
            if patience.ended:
                raise


def run_to_end(command: Any, timeout: float, check: bool = False, **options: Any) -> subprocess.CompletedProcess:
    """`subprocess.run` with a timeout in seconds of a quiet machine; a process that is late is killed."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, **options) as process:
        said = output_of(process, timeout, given)
        done = subprocess.CompletedProcess(process.args, process.returncode, *said)
    if check:
        done.check_returncode()
    return done


def output_of(process: subprocess.Popen, seconds: float, given: Any = None) -> tuple[Any, Any]:
    """What a process wrote until its end; after so many seconds of a quiet machine it is killed."""
    patience = Patience(seconds)
    while True:
        try:
            return process.communicate(given, timeout=min(_READS, max(patience.left, 0.01)))
        except subprocess.TimeoutExpired:
            given = None  # it has been sent, or will be
            if patience.ended:
                process.kill()
                process.communicate()
                raise
