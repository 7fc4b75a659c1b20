"""The default process group, and taking part in it as one of torchrun's processes. Works without Ray."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist

from dpfed.artifacts.directory import RunDirectory
from dpfed.cluster.network import address_towards, take_network_of
from dpfed.cluster.work import Task, work
from dpfed.errors import UserError
from dpfed.progress import Watcher

# Seconds that a process waits for the others: rank 0 may import or evaluate for hours. The end of one is noticed at once.
TIMEOUT = 86_400
# By whether there are GPUs. Parameters and sums travel from device to device, messages from memory to memory.
BACKEND_OF = {True: "cpu:gloo,cuda:nccl", False: "gloo"}


def take_part(task: Task, watcher: Watcher) -> RunDirectory | None:
    """Carries out a task as one of torchrun's processes.

    Args:
        task: the same in all of them.
        watcher: sees the stages, on rank 0.

    Returns:
        The finished run, on rank 0.

    Raises:
        UserError: on rank 0, for what the user can mend; everywhere, if torchrun did not start this process.
    """
    if "RANK" not in os.environ:
        raise UserError(
            "torchrun did not start this: give torchrun --nproc-per-node 8 -m -- dpfed pretrain --cluster torchrun CONFIG."
        )
    with process_group():
        work(task, watcher)
    return RunDirectory.open(task.folder) if os.environ["RANK"] == "0" else None


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """The default process group: torchrun's, or one of this process alone."""
    gpus, timeout = torch.cuda.is_available(), datetime.timedelta(seconds=TIMEOUT)
    if "RANK" in os.environ:
        take_network_of(address_towards(os.environ.get("MASTER_ADDR", "")))
        if gpus:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(BACKEND_OF[gpus], timeout=timeout)
    else:
        dist.init_process_group(BACKEND_OF[gpus], store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
