"""Interrupts every command at every 0.2 s of its first 20 s, by Ctrl-C and by SIGTERM, eight at a time.

    python -m benchmarks.signals [--command NAME ...] [--minutes 33] [--at-once 8] [--busy 0] [--random 50]
        [--seed 1] [--list]

The eight are each other's load, beside processes that only compute, if such are asked for. Each has a folder of its own with
copies of what it needs. Checked are exit code, stderr, the seconds until it ends, processes and files that it leaves, and for
some what works afterwards: resuming, repeating.
It merges its figures into `benchmarks/results/signals.json`; other commands' figures stay.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, commit, write_result
from benchmarks.signals.commands import COMMANDS
from benchmarks.signals.seed import make_seed
from benchmarks.signals.starts import Start, carry_out, follow_up, receive_signals

_AT_ONCE = 8
_STEP = 0.2
_SPAN = 20.0  # seconds of its first moments
_LATE = 50.0
_FOLLOWED = 2  # starts of a command after which what works afterwards is tried
_NAME = "signals"


def moments_of(name: str, draw: random.Random) -> list[tuple[float, signal.Signals]]:
    """Moments and signals, in such an order that any first part is spread evenly; both signals come at each moment."""
    command = COMMANDS[name]
    number = round(_SPAN / _STEP)  # moments
    every = [round(_STEP * (place + 1), 2) for place in range(number)]
    order = sorted(range(number), key=lambda place: int(f"{place:010b}"[::-1], 2))
    signals = (signal.SIGINT, signal.SIGTERM)
    first = [(every[place], signals[turn % 2]) for turn, place in enumerate(order)]
    second = [(every[place], signals[1 - turn % 2]) for turn, place in enumerate(order)]
    late = [(round(_SPAN + draw.uniform(0.0, _LATE), 2), signals[turn % 2]) for turn in range(command.late)]
    return first[:20] + late + first[20:] + second


class Sweep:
    """Starts, eight at a time, until all are done or the time is over.

    Args:
        folder: of seed and starts.
        names: of the commands.
        minutes: after which no start is made.
        seed: of what is drawn.
        rounds: of random starts; zero: every moment.
        at_once: starts at a time.
        busy: processes beside them that only compute.
    """

    def __init__(
        self, folder: Path, names: list[str], minutes: float, seed: int, rounds: int = 0, at_once: int = _AT_ONCE, busy: int = 0
    ) -> None:
        self.folder, self.done, self.left = folder, [], defaultdict(int)
        self._at_once, self._busy = at_once, busy
        self._minutes, self._lock, self._number = minutes, threading.Lock(), _latest(folder)
        self._own_ends: dict[str, list[float]] = defaultdict(list)
        self.skipped: dict[str, int] = defaultdict(int)
        draw = random.Random(seed)
        if rounds:
            queue = [
                (draw.choice(names), round(draw.uniform(0.1, 40.0), 2), draw.choice([signal.SIGINT])) for _ in range(rounds)
            ]
        else:
            each = {name: moments_of(name, draw) for name in names}
            turns = range(max(map(len, each.values())))
            queue = [(name, *each[name][turn]) for turn in turns for name in names if turn < len(each[name])]
        self._light = [item for item in queue if not COMMANDS[item[0]].heavy]
        heavy = [name for name in names if COMMANDS[name].heavy]
        self._heavy = [[item for item in queue if item[0] == name] for name in heavy]
        self.known = make_seed(folder / "seed")

    def run(self) -> None:
        """Makes the starts."""
        self._until = time.monotonic() + 60 * self._minutes
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self._busy)]
        try:
            with ThreadPoolExecutor(self._at_once) as pool:
                queues = [[heavy, self._light] for heavy in self._heavy[: self._at_once]]
                list(pool.map(self._work, [*queues, *([[self._light]] * (self._at_once - len(queues)))]))
        finally:
            for process in busy:
                process.kill()
                process.wait()

    def _next(self, queues: list[list]) -> tuple[Start, Path] | None:
        with self._lock:
            for queue in queues:
                while queue:
                    name, moment, number = queue.pop(0)
                    if time.monotonic() > self._until:
                        self.left[name] += 1
                        continue
                    ends = self._own_ends[name]
                    if len(ends) > 2 and moment > 1.25 * max(ends):
                        self.skipped[name] += 1
                        continue
                    self._number += 1
                    return Start(name, number, moment, self.folder / f"{self._number:04}")
        return None

    def _work(self, queues: list[list]) -> None:
        while (start := self._next(queues)) is not None:
            command = COMMANDS[start.command]
            try:
                carry_out(start, command, self.folder / "seed", self.known)
            except Exception as error:  # of this measurement
                start.wrong.append(f"not measured: {type(error).__name__}: {error}")
            with self._lock:
                if start.end == "before":
                    self._own_ends[start.command].append(start.seconds)
                self.done.append(start)
            mark = "WRONG " + "; ".join(start.wrong) if start.wrong else ""
            load = os.getloadavg()[0]
            print(
                f"{start.folder.name} {start.command}, {start.number.name} at {start.moment} s: {start.end} {start.code}, "
                f"{start.seconds} s, load {load:.0f} {mark}"
            )
            keeps = start.wrong or (command.then and start.end in ("stopped", "python"))
            if not keeps:
                shutil.rmtree(start.folder, ignore_errors=True)

    def follow(self) -> dict[str, list[str]]:
        """What works after the latest of the interruptions of each command.

        Returns:
            A sentence for each that was tried, by the command.
        """
        tried: dict[str, list[str]] = defaultdict(list)
        for name in dict.fromkeys(start.command for start in self.done):
            ended = [start for start in self.done if start.command == name and start.end in ("stopped", "python")]
            if not COMMANDS[name].then:
                continue
            for start in sorted(ended, key=lambda start: -start.moment)[:_FOLLOWED]:
                why = follow_up(start, COMMANDS[name], self.known)
                tried[name].append(why or "works")
                print(f"after {name}, {start.moment} s: {why or 'works'}")
        return tried

    def figures(self, tried: dict[str, list[str]]) -> dict[str, Any]:
        """By the command."""
        figures = {}
        for name in sorted({start.command for start in self.done}):
            starts = [start for start in self.done if start.command == name]
            stopped = [start for start in starts if start.end != "before"]
            figures[name] = {
                "starts": len(starts),
                "moments": {
                    number.name: len({start.moment for start in starts if start.number == number})
                    for number in (signal.SIGINT, signal.SIGTERM)
                },
                "latest_moment_s": max(start.moment for start in starts),
                "ended_by_signal": sum(start.end == "stopped" and not start.wrong for start in starts),
                "ended_in_python_itself": sum(start.end == "python" and not start.wrong for start in starts),
                "had_just_done_its_work": sum(start.end == "done" and not start.wrong for start in starts),
                "ended_before_the_signal": sum(start.end == "before" and not start.wrong for start in starts),
                "skipped_as_it_ends_earlier": self.skipped[name],
                "left_out_for_time": self.left[name],
                "slowest_end_s": max((start.seconds for start in stopped), default=None),
                "afterwards": tried.get(name, []),
                "wrong": [
                    {"signal": start.number.name, "moment_s": start.moment, "code": start.code, "wrong": start.wrong}
                    for start in starts
                    if start.wrong
                ],
            }
        return figures


def _latest(folder: Path) -> int:
    """The number of the latest start that an earlier sweep has left in a folder."""
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=0)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.signals")
    parser.add_argument("--command", action="append", choices=list(COMMANDS), help="only this one; may be repeated")
    parser.add_argument("--minutes", type=float, default=33.0, help="after which no start is made")
    parser.add_argument("--at-once", type=int, default=_AT_ONCE, help="starts at a time; more for commands that only wait")
    parser.add_argument("--busy", type=int, default=0, help="processes beside them that only compute")
    parser.add_argument("--random", type=int, default=0, help="so many starts of commands drawn at random, ended by Ctrl-C")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--folder", type=Path, help="of an earlier sweep, whose seed is used again")
    parser.add_argument("--list", action="store_true", help="print the names of the commands")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(COMMANDS))
        return
    receive_signals()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="s-", dir="/tmp"))  # short, for sockets lie in it
    print(f"the starts lie in {folder}")
    sweep = Sweep(folder, asked.command or list(COMMANDS), asked.minutes, asked.seed, asked.random, asked.at_once, asked.busy)
    began = time.monotonic()
    sweep.run()
    seconds = round(time.monotonic() - began)
    by_command = sweep.figures(sweep.follow())
    for start in sweep.done:
        if start.wrong:
            print(f"WRONG {start.folder} {start.command}, {start.number.name} at {start.moment} s: {start.wrong}\n{start.said}")
    known = RESULTS / f"{_NAME}.json"
    before = json.loads(known.read_text())["figures"] if known.exists() else {}
    of = {"commit": commit(), "starts_at_once": asked.at_once, "busy_processes": asked.busy, "seconds": seconds}
    if asked.random:
        figures = {**before, "random": {**of, "seed": asked.seed, "by_command": by_command}}
    else:
        figures = {
            **before,
            "commands": before.get("commands", {}) | {name: {**of, **value} for name, value in by_command.items()},
        }
    print(write_result(_NAME, figures, seeds=[asked.seed]))


if __name__ == "__main__":
    main()
