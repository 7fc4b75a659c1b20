"""Ctrl-C and SIGTERM end a command with 130 and 143, wherever the main thread is when they come."""

import contextlib
import random
import signal
import subprocess
import sys

import pytest
import tomli_w

from tests.patience import output_of, run_to_end

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
# As PyTorch's modules start what is in C++: there, an exception aborts the process.
STARTS_IN_C = """
import linecache, types
def start():
    try:
        signal.raise_signal(NUMBER)
    except BaseException:
        os.abort()
line = "if not torch._C._c10d_init(): raise RuntimeError"
linecache.cache["made.py"] = (len(line), None, [line], "made.py")
names = {"__name__": "torch.made", "torch": types.SimpleNamespace(_C=types.SimpleNamespace(_c10d_init=lambda: [start()]))}
exec(compile(line, "made.py", "exec"), names)
time.sleep(400)
"""


def carried_out(body, number):
    program = PROGRAM.format(body="\n".join(f"    {line}" for line in body.strip("\n").splitlines()))
    return run_to_end([sys.executable, "-c", program, str(int(number))], capture_output=True, text=True, timeout=50)


def ended(body, number):
    done = carried_out(body, number)
    return done.returncode, done.stdout, done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize(
    "body",
    [
        "swallow()\ntime.sleep(400)\nprint('went on')",  # it waits in the system
        "swallow()\nwhile True: pass",
        "swallow()\nprint('done')",  # it is over before the signal is repeated
        STARTS_IN_C,
        "swallow()\nraise ImportError('numpy._core.multiarray failed to import')",  # what C code makes of it
        "swallow()\nraise UserError('install Ray. [ray-missing]')",  # what we make of that
    ],
)
def test_a_signal_whose_exception_is_forgotten_ends_a_command(body, number, code):
    exit_code, out, said = ended(body, number)
    assert (exit_code, said) == (code, "stopped.") and "went on" not in out


@pytest.mark.parametrize("number", [number for number, _ in SIGNALS])
def test_a_forgotten_interruption_prints_no_traceback_others_do(number):
    body = """
class Fails:
    def __del__(self):
        raise ValueError("of another kind")

Fails()
swallow()
time.sleep(400)
"""
    said = carried_out(body, number).stderr
    assert said.count("Traceback") == said.count("ValueError: of another kind") == 1
    assert said.endswith("\nstopped.\n") and "Interrupted" not in said


_IN_C = """
import ctypes, threading
from dpfed.console.interruption import wait_for

def wait_for_work(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wait_for(lambda: not thread.is_alive())

"""


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_library_that_resets_handlers_in_c_changes_no_exit_code(number, code):
    """As Ray does when it disconnects."""
    body = """
def reset():
    ctypes.CDLL(None).signal(int(NUMBER), None)
    time.sleep(0.5)

wait_for_work(reset)
signal.raise_signal(NUMBER)
"""
    assert ended(_IN_C + body, number) == (code, "", "stopped.")


def test_an_alarm_that_a_library_set_aborts_nothing():
    """As Ray's handler does in C, which sets an alarm and passes the signal on, while a connection in C holds Python's lock."""
    body = """
def library():
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    ctypes.PyDLL(None).usleep(500_000)

thread = threading.Thread(target=time.sleep, args=(5,), daemon=True)  # no thread may take the alarm either
thread.start()
wait_for_work(library)
try:
    signal.raise_signal(NUMBER)
finally:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    time.sleep(0.5)
    print("cleared away")
"""
    assert ended(_IN_C + body, signal.SIGTERM) == (143, "cleared away\n", "stopped.")


def test_alarms_come_again_after_a_command():
    program = """
import signal, time
from dpfed.console.interruption import interruptible
with interruptible():
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    time.sleep(0.3)
print("one alarm was dropped", flush=True)
signal.signal(signal.SIGALRM, lambda *_: print("another came"))
signal.setitimer(signal.ITIMER_REAL, 0.1)
time.sleep(0.5)
"""
    done = run_to_end([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (0, "one alarm was dropped\nanother came\n")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_no_signal_is_repeated_while_a_library_may_have_reset_handlers(number, code):
    body = """
def reset():
    for _ in range(2000):
        ctypes.CDLL(None).signal(int(NUMBER), None)
        time.sleep(0.001)

try:
    signal.raise_signal(NUMBER)
finally:
    wait_for_work(reset)
    print("cleared away")
"""
    assert ended(_IN_C + body, number) == (code, "cleared away\n", "stopped.")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_what_is_cleared_away_after_a_signal_is_not_disturbed(number, code):
    body = """
try:
    signal.raise_signal(NUMBER)
finally:
    with contextlib.suppress(RuntimeError):
        time.sleep(0.8)  # the signal would come again after 0.05, 0.1, 0.2 and 0.4 seconds
        raise RuntimeError
    time.sleep(0.2)
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


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize(
    "place",
    [
        "before(dpfed.cli, 'main')",
        "before(dpfed.cli, 'run')",
        "before(dpfed.console.entry, 'without_proxy')",
        "before(dpfed.console.entry, '_end')",
        "after(dpfed.cli, 'main')",
        "after(dpfed.console.entry, '_run')",
    ],
)
def test_a_signal_between_two_lines_of_the_entry_ends_it(place, number, code):
    program = f"""
import signal, sys
import dpfed.cli, dpfed.console.entry
from dpfed.__main__ import main

def before(owner, name):
    real = getattr(owner, name)
    setattr(owner, name, lambda *given: [signal.raise_signal({int(number)}), real(*given)])

def after(owner, name):
    real = getattr(owner, name)
    def wrapped(*given):
        try:
            real(*given)
        finally:
            signal.raise_signal({int(number)})
    setattr(owner, name, wrapped)

{place}
sys.argv = ["dpfed", "config", "show", "no-such-name"]
main()
"""
    done = run_to_end([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, "stopped.") and "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [number for number, _ in SIGNALS])
def test_a_signal_after_the_last_line_prints_no_traceback(number):
    """Python still clears away: a shell counts 130 or 143."""
    program = f"""
import atexit, signal, sys
from dpfed.__main__ import main
atexit.register(lambda: [signal.raise_signal({int(number)}), print("was not reached")])
sys.argv = ["dpfed", "config", "show", "quickstart"]
main()
"""
    done = run_to_end([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (-number, "") and done.stdout.endswith("every = 25\n")


@pytest.mark.slow
def test_fifty_starts_at_random_moments(tiny, tmp_path):
    """As a shell sees them: a signal that comes before or after the command's own lines ends Python itself."""
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(tiny))
    for number in range(50):
        moment, (how, code) = random.uniform(0.5, 12.0), SIGNALS[number % 2]
        command = [sys.executable, "-m", "dpfed", "pretrain", "tiny.toml", "--run", f"run-{number}"]
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        process.send_signal(how)
        _, said = output_of(process, 60)
        assert process.returncode in (code, -how, 0), (moment, said)
        assert process.returncode == -how or "Traceback" not in said, (moment, said)
    left = {path.name for path in tmp_path.iterdir()} - {"tiny.toml"}
    assert all(name.startswith("run-") for name in left), left  # and no draft of one
    unfinished = [tmp_path / name for name in left if not (tmp_path / name / "results.json").exists()]
    for run in unfinished[:3]:
        assert subprocess.run([sys.executable, "-m", "dpfed", "resume", str(run)]).returncode == 0
