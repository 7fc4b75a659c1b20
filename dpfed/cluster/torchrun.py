"""The default process group, and taking part in it as one of torchrun's processes. Works without Ray.

Also here: which of a machine's networks gloo takes.

Left to itself, gloo takes the address that the host's own name stands for. Debian's and Ubuntu's `/etc/hosts` says 127.0.1.1,
where no other machine finds it: processes on several machines then never meet.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dpfed.artifacts.directory import RunDirectory
from dpfed.cluster.work import Task, work
from dpfed.errors import UserError
from dpfed.progress import Progress

if TYPE_CHECKING:
    from ray.train.torch import TorchConfig

_SETTING = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def take_network_of(address: str) -> None:
    """Has gloo, in this process, use the interface that has an address; what the user has set stays.

    Args:
        address: of this machine, IPv4. Nothing changes where no interface has it.
    """
    if _SETTING not in os.environ and (interface := interface_of(address)):
        os.environ[_SETTING] = interface


def address_towards(host: str) -> str:
    """This machine's address on the way to a host; "" where there is no way. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def interface_of(address: str) -> str:
    """The interface that has an IPv4 address; "" for none, or where the system does not tell."""
    try:
        import fcntl

        wanted = socket.inet_aton(address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                try:
                    found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                except OSError:  # it has none
                    continue
                if found[20:24] == wanted:
                    return name
    except (ImportError, OSError):
        return ""
    return ""


def on_the_nodes_network(backend: str, seconds: int) -> TorchConfig:
    """Ray's set-up of the process group, on the network by which each machine is a node of the cluster.

    Args:
        backend: of `torch.distributed`.
        seconds: that a process waits for the others.
    """
    from ray.train.torch import TorchConfig
    from ray.util import get_node_ip_address

    class Backend(TorchConfig().backend_cls):  # type: ignore[misc]  # known only as a value
        def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
            worker_group.execute(lambda: take_network_of(get_node_ip_address()))
            super().on_start(worker_group, backend_config)

    class Config(TorchConfig):
        @property
        def backend_cls(self) -> type:
            return Backend

    return Config(backend, timeout_s=seconds)


# Seconds that a process waits for the others: rank 0 may import or evaluate for hours. The end of one is noticed at once.
TIMEOUT = 86_400
# By whether there are GPUs. Parameters and sums travel from device to device, messages from memory to memory.
BACKEND_OF = {True: "cpu:gloo,cuda:nccl", False: "gloo"}


def take_part(task: Task, progress: Progress) -> RunDirectory | None:
    """Carries out a task as one of torchrun's processes.

    Args:
        task: the same in all of them.
        progress: sees the stages, on rank 0.

    Returns:
        The finished run, on rank 0.

    Raises:
        UserError: on rank 0, for what the user can fix; everywhere, if torchrun did not start this process.
    """
    if "RANK" not in os.environ:
        raise UserError(
            "this process was not started by torchrun: `torchrun --nproc-per-node 8 -m -- dpfed pretrain --cluster torchrun "
            "CONFIG`. [cluster-no-torchrun]"
        )
    with process_group():
        work(task, progress)
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
