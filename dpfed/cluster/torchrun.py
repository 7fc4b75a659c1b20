"""Sets up the default process group, and carries out runs as one of torchrun's processes. The module loads without Ray.

The module also chooses the network interface of gloo. By default, gloo uses the address to which the host's own name resolves.
In Debian's and Ubuntu's `/etc/hosts` that is 127.0.1.1, which other machines cannot reach: processes on several machines would
never connect.
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
from dpfed.cluster.calls import Call
from dpfed.cluster.work import Task, work
from dpfed.errors import UserError
from dpfed.progress import Progress

if TYPE_CHECKING:
    from ray.train.torch import TorchConfig

_SETTING = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def take_network_of(address: str) -> None:
    """Makes gloo use the network interface with a given address in this process, unless GLOO_SOCKET_IFNAME names an interface.

    Args:
        address: IPv4 address of this machine. If no interface has it, nothing changes.
    """
    if _SETTING not in os.environ and (interface := interface_of(address)):
        os.environ[_SETTING] = interface


def address_towards(host: str) -> str:
    """Returns this machine's IPv4 address on the route to a host; "" if there is no route. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def interface_of(address: str) -> str:
    """Returns the network interface that has an IPv4 address; "" if there is none, or the system does not tell."""
    try:
        import fcntl

        wanted = socket.inet_aton(address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                try:
                    reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                except OSError:  # the interface has no IPv4 address
                    continue
                if reply[20:24] == wanted:
                    return name
    except (ImportError, OSError):
        return ""
    return ""


def on_the_nodes_network(backend: str, seconds: int) -> TorchConfig:
    """Returns Ray's settings of the process group, with gloo on the network by which Ray reaches each machine.

    Args:
        backend: Backend of `torch.distributed`.
        seconds: Seconds that a process waits for the others.
    """
    from ray.train.torch import TorchConfig
    from ray.util import get_node_ip_address

    class Backend(TorchConfig().backend_cls):  # type: ignore[misc]  # the base class is known only at run time
        def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
            worker_group.execute(lambda: take_network_of(get_node_ip_address()))
            super().on_start(worker_group, backend_config)

    class Config(TorchConfig):
        @property
        def backend_cls(self) -> type:
            return Backend

    return Config(backend, timeout_s=seconds)


# Seconds that a process waits for the others: rank 0 may import or evaluate for hours. A process's death is noticed at once.
TIMEOUT = 86_400
# Backend by whether there are GPUs. Parameters and sums travel between devices, messages between CPU memories.
BACKEND_OF = {True: "cpu:gloo,cuda:nccl", False: "gloo"}


def take_part(task: Task, progress: Progress) -> RunDirectory | None:
    """Carries out a task as one of torchrun's processes.

    Args:
        task: Run to begin or to resume; the same in all processes.
        progress: Progress, which shows the stages on rank 0.

    Returns:
        The finished run on rank 0; ``None`` on other ranks.

    Raises:
        UserError: If torchrun did not start this process; on rank 0 also if the run cannot be begun, resumed or carried out.
    """
    if "RANK" not in os.environ:
        command = "resume RUN" if task.config is None else "pretrain CONFIG"
        raise UserError(
            f"this process was not started by torchrun: `torchrun --nproc-per-node 8 -m -- dpfed {command} --cluster torchrun` "
            "starts the command in 8 processes. [cluster-no-torchrun]"
        )
    with process_group():
        work(task, progress)
    return RunDirectory.open(task.folder) if os.environ["RANK"] == "0" else None


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Sets up the default process group for the block: that of torchrun's processes, or of this process alone."""
    gpus, timeout = torch.cuda.is_available(), datetime.timedelta(seconds=TIMEOUT)
    if "RANK" in os.environ:
        take_network_of(address_towards(os.environ.get("MASTER_ADDR", "")))
        if gpus:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        # A process that waits for another one in C would not notice Ctrl-C, and torchrun would wait for it for 30 seconds.
        Call(lambda: dist.init_process_group(BACKEND_OF[gpus], timeout=timeout)).finish()
    else:
        dist.init_process_group(BACKEND_OF[gpus], store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
