"""Checks whether a Ray cluster answers, before Ray connects: Ray itself would wait for minutes, and end with a traceback.

The module also computes how many workers the machines of a Ray cluster have room for, now and during a run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dpfed.errors import UserError
from dpfed.progress import Progress

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

REMEDY = "Start it (`ray start --head`), or set RAY_ADDRESS=local for a cluster on this machine."
_ANSWER = 5.0  # seconds
_QUESTION = "/ray.rpc.NodeInfoGcsService/GetClusterId"  # every member's first request; only its authentication matters here


def ray_folder() -> Path:
    """Returns the folder of Ray's sessions and logs on this machine."""
    return Path(os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp")), "ray")  # noqa: S108 where Ray looks


def require_cluster(progress: Progress, wait: float = 60.0, remedy: str = REMEDY) -> None:
    """Refuses a cluster that does not answer, or that expects another token.

    The cluster is the one that RAY_ADDRESS names, or else the one that the last `ray start` noted on this machine. Nothing is
    checked if there is no such cluster, or RAY_ADDRESS is ``local`` or has a scheme other than ``ray://``.

    Args:
        progress: Progress, which shows a note while the function waits for Ray's head node.
        wait: Seconds to wait for the head node that RAY_ADDRESS names: a job script may have started it just now.
        remedy: Advice for the error if no cluster answers.

    Raises:
        UserError: If RAY_ADDRESS is not an address, no cluster answers, or the cluster refuses this machine's token.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if left := address in ("", "auto"):
        with contextlib.suppress(OSError, ValueError):  # `ray stop` deletes the file, a crash does not
            address = (ray_folder() / "ray_current_cluster").read_text(encoding="utf-8").strip()
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("", "auto", "local") or "://" in host:
        return
    try:
        _reach((host.strip("[]"), int(port)), 0.0 if left else wait, progress)
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"{address!r} is not the address of a Ray cluster: expected host and port in RAY_ADDRESS, such as 10.0.0.5:6379, "
            "or 'local' or 'auto'. [ray-address]"
        ) from error
    except OSError as error:
        named = f"at {address!r}, which RAY_ADDRESS or the last `ray start` names ({error})"
        raise UserError(f"no Ray cluster answers {named}. {remedy} [ray-unreachable]") from error
    with contextlib.suppress(ImportError):  # another version of Ray: a wrong token is then refused later, by Ray
        import grpc
        from ray._private.authentication.grpc_authentication_client_interceptor import _get_authentication_metadata_tuple

        with grpc.insecure_channel(f"{host}:{port}") as channel:
            try:
                channel.unary_unary(_QUESTION)(b"", timeout=_ANSWER, metadata=_get_authentication_metadata_tuple())
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAUTHENTICATED:  # all else is left to Ray
                    raise UserError(
                        f"the Ray cluster at {address!r} does not take this machine's token: set RAY_AUTH_MODE=token, and "
                        "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token of that cluster. [ray-token]"
                    ) from None


def _reach(address: tuple[str, int], wait: float, progress: Progress) -> None:
    """Waits until a program listens at an address.

    Raises:
        OSError: If no program listens there after `wait` seconds.
    """
    until, told = time.monotonic() + wait, False
    while True:
        try:
            return socket.create_connection(address, timeout=_ANSWER).close()
        except OSError as error:
            if time.monotonic() >= until:
                raise
            if not told:
                progress.note(
                    f"no Ray cluster answers at {':'.join(map(str, address))} yet ({error}): waiting up to {wait:.0f} s"
                )
            told = True
            time.sleep(min(1.0, wait))


def room_for(cpus: int, gpus: int, there: list[dict[str, float]]) -> int:
    """Returns the number of workers that fit on the given machines.

    Args:
        cpus: CPUs per worker.
        gpus: GPUs per worker, 0 or 1.
        there: Resources of each machine, as Ray reports them.
    """
    room = [(int(machine.get("CPU", 0)) // cpus, int(machine.get("GPU", 0))) for machine in there]
    return sum(min(pair) if gpus else pair[0] for pair in room)


@contextlib.contextmanager
def watched(least: int, room: Callable[[], int], progress: Progress, every: float = 5.0) -> Iterator[None]:
    """Shows a note when the cluster has room for too few workers, and when machines are back. Ray itself says nothing.

    Args:
        least: Smallest number of workers with which the run can continue.
        room: Function that returns the number of workers for which there is room now.
        progress: Progress, which shows the notes.
        every: Seconds between two checks.
    """
    ended, missing = threading.Event(), False

    def look() -> None:
        nonlocal missing
        while not ended.wait(every):
            with contextlib.suppress(Exception):  # errors of Ray if the head is gone: the run itself reports that
                if ((now := room()) < least) != missing:
                    missing = not missing
                    waits = f"the cluster has room for {now} of {least} workers, and the run waits for the others"
                    progress.note(f"machines are missing: {waits}" if missing else "the machines that were missing are back")

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=10)  # later, `room` would start a cluster


@contextlib.contextmanager
def taking_back(trainer: TorchTrainer) -> Iterator[None]:
    """Cancels Ray Train's request for resources at the end of the block.

    Without this, an autoscaling cluster could start machines up to three minutes after the run was stopped.
    """
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # no head, or another version of Ray: the request expires
            import ray

            coordinator = ray.get_actor("AutoscalingCoordinator", namespace="AutoscalingCoordinator")
            requester = f"train-{trainer.train_run_context.run_id}"  # type: ignore[attr-defined]  # Ray types Train v1
            ray.get(coordinator.cancel_request.remote(requester), timeout=_ANSWER)
