"""Calls in another thread: results, errors, interruption, and processes that Linux ties to the thread that started them."""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time

import pytest

from dpfed.cluster.calls import Call
from tests.cluster.processes import Processes, come_and_wait, dpfed, pretrain, wait_for
from tests.patience import Patience

_PR_SET_PDEATHSIG = 1


def test_an_error_of_the_function_is_raised_where_the_call_is_finished():
    call = Call(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call.finish()
    assert call.is_over


def test_calls_run_one_after_the_other_in_one_other_thread():
    threads = []
    calls = [Call(lambda: [time.sleep(0.05), threads.append(threading.get_ident())]) for _ in range(3)]
    calls[-1].finish()
    assert all(call.is_over for call in calls) and len(threads) == 3
    assert len(set(threads)) == 1 and threads[0] != threading.get_ident()


def test_an_interrupted_call_ends_and_the_next_one_runs():
    call, ends = Call(lambda: [time.sleep(0.01) for _ in range(100_000)]), []
    call.interrupt(may_end=lambda frame: True)
    assert call.is_over
    Call(lambda: ends.append(1)).finish()
    assert ends == [1]


def test_a_call_is_interrupted_only_where_it_may_be():
    ends = []

    def releases_a_lock():
        time.sleep(0.5)
        ends.append("released")

    def waits():
        releases_a_lock()
        time.sleep(0.5)
        ends.append("not interrupted")

    call = Call(waits)
    call.interrupt(may_end=lambda frame: frame.f_code.co_name == "waits")
    assert call.is_over and ends == ["released"]


def test_processes_that_a_call_started_outlive_it():
    children = []

    def start():
        def dies_with_its_thread():
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

        children.append(subprocess.Popen(["sleep", "60"], preexec_fn=dies_with_its_thread))

    Call(start).finish()
    with contextlib.suppress(subprocess.TimeoutExpired):
        children[0].wait(0.5)
    try:
        assert children[0].poll() is None
    finally:
        children[0].kill()
        children[0].wait()


def _joins_alone(rank, place, *arguments):
    import torch.distributed as dist

    real = dist.init_process_group

    def joined(*given, **named):
        place.touch()
        return real(*given, **named)

    if rank:
        come_and_wait(place.with_name("other"))
    dist.init_process_group = joined
    dpfed(*arguments)


def test_ctrl_c_ends_a_process_of_torchrun_that_waits_for_another(source, tmp_path):
    with Processes(2, tmp_path / "out", _joins_alone, tmp_path / "here", *pretrain(source, tmp_path / "run")) as processes:
        wait_for(tmp_path / "here", processes)
        time.sleep(1)
        os.kill(processes.members[0].pid, signal.SIGINT)
        patience = Patience(20)
        while processes.members[0].is_alive() and not patience.ended:
            time.sleep(0.1)
        assert processes.members[0].exitcode == 130, processes.text
        assert processes.output(0).endswith("stopped.\n")
    assert not (tmp_path / "run").exists()
