"""One start of a command that is interrupted, and what it left."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.signals.commands import TORCHRUN, Command
from benchmarks.signals.seed import DPFED, environment
from benchmarks.signals.whole import half_written

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
_MARK = "DPFED_SIGNALS"  # in the environment of a start and of all that it starts
_FEW = 15.0  # seconds of eight busy processes on two cores, within which a command ends
_MOST = 90.0
_GRACE = 10.0  # seconds for processes that a command has left to notice it
_PYTHON_BEGINS = 2.0  # seconds within which Python itself begins, under load
_BEFORE_DPFED = "Fatal Python error: init_import_site"  # Ctrl-C while Python reads site-packages: nothing of dpfed has run


@dataclass
class Start:
    """How a start ended.

    Attributes:
        command: its name.
        number: the signal.
        moment: seconds after the start when it was to come.
        folder: of this start.
        code: exit code; negative: a signal ended Python.
        end: ``"before"`` the signal, ``"stopped"`` by dpfed, in ``"python"`` itself, ``"done"``: it had just done its work.
        seconds: from the signal to the end, or from the start if it ended before the signal.
        wrong: sentences.
        said: the end of what it wrote to stderr.
    """

    command: str
    number: signal.Signals
    moment: float
    folder: Path
    code: int = 0
    end: str = ""
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    said: str = ""


def prepare(seed: Path, folder: Path, needs: tuple[str, ...]) -> None:
    """Copies what a command needs; ``A:B`` is the seed's A, called B here."""
    for name in ("home", "tmp"):
        (folder / name).mkdir(parents=True)
    for need in needs:
        source, _, name = need.partition(":")
        target = folder / (name or source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (seed / source).exists():
            continue
        if (seed / source).is_dir():
            shutil.copytree(seed / source, target, symlinks=True)
        else:
            shutil.copy(seed / source, target)


def line_of(words: tuple[str, ...], known: dict[str, str]) -> list[str]:
    """A command line with what stands for words of this seed."""
    known = {**known, "{port}": str(_free_port())}
    for name, value in known.items():
        words = tuple(word.replace(name, value) for word in words)
    return [str(DPFED.with_name(TORCHRUN)), *words[1:]] if words[0] == TORCHRUN else [str(DPFED), *words]


def carry_out(start: Start, command: Command, seed: Path, known: dict[str, str]) -> None:
    """Starts a command in its own session, sends the signal, and writes down how it ended.

    Ctrl-C goes to all processes of the group, as from a terminal; SIGTERM to the command alone.
    """
    prepare(seed, start.folder, command.needs)
    mark = f"{_MARK}={start.folder}"
    variables = environment(start.folder) | {_MARK: str(start.folder)}
    with (start.folder / "tmp.out").open("wb") as out, (start.folder / "tmp.err").open("wb") as err:
        process = subprocess.Popen(
            line_of(command.words, known), cwd=start.folder, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
    began = time.monotonic()
    try:
        process.wait(start.moment)
        start.end = "before"
    except subprocess.TimeoutExpired:
        began = time.monotonic()
        if start.number == signal.SIGINT:
            os.killpg(process.pid, start.number)
        else:
            process.send_signal(start.number)
        try:
            process.wait(_MOST)
        except subprocess.TimeoutExpired:
            start.wrong.append(f"did not end within {_MOST:.0f} s")
            process.kill()
            process.wait()
    start.seconds, start.code = round(time.monotonic() - began, 2), process.returncode
    said = (start.folder / "tmp.err").read_text(errors="replace")
    start.said = said[-3000:]
    _judge(start, command, said)
    for left in _left_running(mark):
        start.wrong.append(f"left a process running: {left}")
    start.wrong += half_written(seed, start.folder)


def _judge(start: Start, command: Command, said: str) -> None:
    ordinary = command.until_stopped == "both" or (command.until_stopped and start.number == signal.SIGINT)
    torchrun = command.words[0] == TORCHRUN
    if start.end == "before":
        if start.code not in command.codes:
            start.wrong.append(f"ended by itself with {start.code}")
    elif start.code == CODES[start.number] or (ordinary and start.code == 0) or (torchrun and start.code == 1):
        start.end = "stopped"
    elif start.code == -start.number or (start.code == 1 and _BEFORE_DPFED in said):
        start.end = "python"
    elif start.code in command.codes:
        start.end = "done"
    else:
        start.wrong.append(f"ended with {start.code}")
    if start.end != "before" and start.seconds > _FEW:
        start.wrong.append(f"took {start.seconds:.1f} s to end")
    by_python = start.end == "python" and start.moment <= _PYTHON_BEGINS and "/dpfed/cli" not in said
    if "Traceback" in said and not torchrun and not by_python:
        start.wrong.append("printed a traceback")


def _left_running(mark: str) -> list[str]:
    """Command lines of processes of a start that live on; they are ended."""
    until = time.monotonic() + _GRACE
    while (left := _marked(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    lines = []
    for number in left:
        try:
            lines.append(Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200])
            os.kill(number, signal.SIGKILL)
        except OSError:
            continue
    return lines


def _marked(mark: str) -> list[int]:
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    processes.append(int(entry.name))
            except OSError:
                continue
    return processes


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def follow_up(start: Start, command: Command, known: dict[str, str]) -> str | None:
    """Carries out what works after an interruption.

    Returns:
        A sentence, if it does not; and ``None`` where it does.
    """
    chosen = [words for path, words in command.then if words and (start.folder / path).exists()]
    first = command.then[0][0]
    for words in chosen if not first else chosen[:1]:
        line = line_of(tuple(words.split()), known)
        done = subprocess.run(
            line, cwd=start.folder, env=environment(start.folder), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            return f"{words}: ended with {done.returncode}: {done.stderr[-500:]}"
    for run in {path for path, _ in command.then if path.startswith("runs/")}:
        if (card := start.folder / run / "privacy_card.md").exists():
            line = [str(DPFED), "privacy", "verify", str(card), run]
            done = subprocess.run(line, cwd=start.folder, env=environment(start.folder), capture_output=True, text=True)
            if done.returncode:
                return f"privacy verify after {chosen[0]}: ended with {done.returncode}: {done.stderr[-500:]}"
    return None


def receive_signals() -> None:
    """Commands answer Ctrl-C although this process was started in the background: what is ignored here, they ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CODES)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
