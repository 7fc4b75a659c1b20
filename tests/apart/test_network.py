"""Processes on machines of their own meet, and a link that is lost for a moment loses nothing."""

import sys
import time

import pytest

from tests.apart.machines import until
from tests.patience import exit_code

TAKE_PART = """
import sys, time, torch, torch.distributed as dist
from dpfed.cluster.torchrun import process_group
with process_group():
    for step in range(30):
        values = torch.full((1000,), dist.get_rank() + 1.0)
        dist.reduce(values, 0)
        print(step, values[0].item(), flush=True)
        time.sleep(0.1)
"""


@pytest.mark.slow
def test_machines_named_as_loopback_reduce_over_their_network(network):
    machines = [network.machine(f"gpu{number}") for number in range(2)]
    setting = {"MASTER_ADDR": machines[0].address, "MASTER_PORT": "29500", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    ranks = [
        machine.start("rank", sys.executable, "-c", TAKE_PART, RANK=str(rank), **setting)
        for rank, machine in enumerate(machines)
    ]
    until(lambda: "\n3 3.0" in machines[0].text("rank") or None, "third sum", 300)
    network.cut(machines[1])
    time.sleep(1)
    network.mend(machines[1])
    assert [exit_code(rank, 120) for rank in ranks] == [0, 0]
    lines = [line.split() for line in machines[0].text("rank").splitlines() if line[:1].isdigit()]
    assert lines == [[str(step), "3.0"] for step in range(30)]
