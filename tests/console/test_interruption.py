"""Ctrl-C and SIGTERM end a command with 130 and 143, wherever the main thread is when they come."""

import contextlib
import os
import random
import signal
import subprocess
import sys

import pytest
import tomli_w

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
# A command whose body is given; `swallow` receives the signal where Python forgets its exception: in a destructor.
PROGRAM = """
import contextlib, os, signal, sys, time
import typer
from dpfed.console.entry import run
from dpfed.errors import UserError

NUMBER = int(sys.argv.pop(1))

class Forgets:
    def __del__(self):
        signal.raise_signal(NUMBER)

def swallow():
    Forgets()

app = typer.Typer()

@app.command()
def command():
{body}

run(app)
"""


def ended(body, number, *words):
    program = PROGRAM.format(body="\n".join(f"    {line}" for line in body.strip("\n").splitlines()))
    done = subprocess.run([sys.executable, "-c", program, str(int(number)), *words], capture_output=True, text=True, timeout=50)
    return done.returncode, done.stdout, done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize(
    "body",
    [
        "swallow()\ntime.sleep(40)\nprint('went on')",  # it waits in the system
        "swallow()\nwhile True: pass",
        "swallow()\nprint('done')",  # it is over before the signal is repeated
        "swallow()\nraise ImportError('numpy._core.multiarray failed to import')",  # what C code makes of it
        "swallow()\nraise UserError('install Ray. [ray-missing]')",  # what we make of that
    ],
)
def test_a_signal_whose_exception_is_forgotten_ends_a_command_all_the_same(body, number, code):
    found, out, said = ended(body, number)
    assert (found, said) == (code, "stopped.") and "went on" not in out


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_what_is_cleared_away_after_a_signal_is_not_disturbed(number, code):
    body = """
try:
    signal.raise_signal(NUMBER)
finally:
    with contextlib.suppress(RuntimeError):
        time.sleep(2)
        raise RuntimeError
    time.sleep(0.5)
    print("cleared away")
"""
    assert ended(body, number) == (code, "cleared away\n", "stopped.")


def test_a_second_sigterm_ends_it_at_once():
    body = """
try:
    signal.raise_signal(NUMBER)
finally:
    signal.raise_signal(NUMBER)
    print("cleared away", flush=True)
"""
    program = PROGRAM.format(body="\n".join(f"    {line}" for line in body.strip("\n").splitlines()))
    done = subprocess.run([sys.executable, "-c", program, str(int(signal.SIGTERM))], capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM and not done.stdout


def test_a_command_in_the_background_of_a_script_ignores_ctrl_c():
    ignoring = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    program = PROGRAM.format(body="    signal.raise_signal(NUMBER)\n    print('went on')")
    command = [sys.executable, "-c", ignoring, sys.executable, "-c", program, str(int(signal.SIGINT))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "went on\n")


def starts(words, folder, moments):
    """Starts a command and signals it after so many seconds, over and over."""
    for number, moment in enumerate(moments):
        how, code = SIGNALS[number % 2]
        process = subprocess.Popen([sys.executable, "-m", "dpfed", *words], cwd=folder, stderr=subprocess.PIPE, text=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        process.send_signal(how)
        yield moment, process.communicate(timeout=50)[1], process.returncode, code


@pytest.mark.slow
def test_fifty_starts_at_random_moments(tiny, tmp_path):
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(tiny))
    there = set(os.listdir(tmp_path))
    moments = [random.uniform(0.3, 8.0) for _ in range(50)]
    for moment, said, code, expected in starts(["pretrain", "tiny.toml", "--run", "run", "--resume"], tmp_path, moments):
        assert code in (expected, 0), (moment, said)
        assert "Traceback" not in said and set(os.listdir(tmp_path)) <= there | {"run"}, (moment, said)
    done = subprocess.run([sys.executable, "-m", "dpfed", "pretrain", "tiny.toml", "--run", "run", "--resume"], cwd=tmp_path)
    assert done.returncode == 0
