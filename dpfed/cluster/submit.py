"""`dpfed cluster submit CONFIG ...`: has a Ray cluster carry `dpfed pretrain --cluster ray CONFIG ...` out, and shows its log.

`ray job submit` does the same on a cluster that is up. This waits for one that is still starting, and says what it waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shlex
import sys
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfed.cluster.reach import NOT_TAKEN, WAIT, last_line, patiently
from dpfed.console.terminal import say, watching
from dpfed.errors import UserError
from dpfed.paths import proxy_hint

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

    from dpfed.progress import Watcher

_DEFAULT = "http://127.0.0.1:8265"
_SERVERS = tuple(f"status code {code}" for code in range(500, 600))  # what passes: an agent that is not up yet, a proxy
_LOOK = 15.0  # seconds
_THERE = "already exists"  # an attempt that seemed to fail had come through

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
def main(
    arguments: Annotated[
        list[str], typer.Argument(metavar="CONFIG [OPTIONS]", help="Configuration and options of `dpfed pretrain`.")
    ],
    address: Annotated[
        str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="Address at which the cluster accepts jobs.", show_default=True)
    ] = _DEFAULT,
    working_dir: Annotated[
        Path, typer.Option(help="Folder that is uploaded to the cluster, without the files that git ignores.")
    ] = Path("."),
    wait: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds to wait for a cluster that is starting.")] = WAIT,
) -> None:
    """Submit a run to a Ray cluster and follow it to its end."""
    if not _is_address(address):
        raise UserError(f"--address {address}: expected where the cluster's dashboard listens, such as {_DEFAULT}.")
    if not working_dir.is_dir():
        raise UserError(f"--working-dir {working_dir} is not a folder.")
    say("loading Ray")
    try:
        import ray.job_submission  # noqa: F401
    except ImportError as error:
        raise UserError("a Ray cluster needs Ray: pip install 'dpfed[ray]'.") from error
    for handler in logging.getLogger(
        "ray"
    ).handlers:  # every attempt tells of each file otherwise; loggers below have levels of their own
        handler.setLevel(logging.ERROR)
    with watching() as watcher:
        client, job = submit(arguments, address, working_dir, watcher, wait)
    say(f"job {job} is submitted; what follows is its log, and Ctrl-C leaves it running")
    status, message = asyncio.run(_follow(client, job))
    if status == "SUCCEEDED":
        return
    print(
        f"error: job {job} ended as {status}: {message} If it had begun a run, the same command with --resume continues it.",
        file=sys.stderr,
    )
    sys.exit(1)


def submit(
    arguments: list[str], address: str, working_dir: Path, watcher: Watcher, wait: float = WAIT
) -> tuple[JobSubmissionClient, str]:
    """Submits a run, as soon as the cluster takes jobs, and once.

    Args:
        arguments: of ``dpfed pretrain --cluster ray``.
        address: of the cluster's dashboard.
        working_dir: travels along.
        watcher: learns what it waits for.
        wait: seconds for a cluster that is starting.

    Returns:
        A connection, and the job's name.

    Raises:
        UserError: if the cluster takes no jobs within that time, or not this one.
    """
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    os.environ["RAY_API_SERVER_ADDRESS"] = address  # Ray prefers it, and RAY_ADDRESS, to its argument
    job = f"dpfed-{secrets.token_hex(6)}"  # the same for each attempt, so that two of them are one job
    remedy = "Look at `ray status` and at the head's logs, or give --address, or more time with --wait." + proxy_hint()

    def attempt() -> JobSubmissionClient:
        try:
            client = JobSubmissionClient(address)
            client.submit_job(
                entrypoint=shlex.join(["python", "-m", "dpfed", "pretrain", "--cluster", "ray", *arguments]),
                submission_id=job,
                runtime_env={"working_dir": str(working_dir)},
            )
        except AuthenticationError as error:
            raise UserError(f"the Ray cluster at {address} {NOT_TAKEN}") from error
        except (RuntimeError, ValueError) as error:
            if not (_THERE in str(error) and job in str(error)):
                raise
        return client

    def hopeless(error: Exception) -> bool:
        return not (isinstance(error, OSError) or any(code in str(error) for code in _SERVERS))  # no connection is an OSError

    return patiently(attempt, f"submitting to {address}", watcher, hopeless, remedy, wait), job


def _is_address(text: str) -> bool:
    """Whether a text names a host, and a port that there can be."""
    try:
        parts = urllib.parse.urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False


async def _follow(client: Any, job: str, every: float = _LOOK) -> tuple[str, str]:
    """Prints a job's log to its end; what it ended as, and why.

    Args:
        client: connection to the cluster.
        job: its name.
        every: seconds between two looks whether the head is there. One that vanished ends no connection: the log would be
            waited for without an end.

    Raises:
        UserError: if the head cannot be reached any more.
    """
    log = asyncio.create_task(_log(client, job))
    try:
        while not (await asyncio.wait([log], timeout=every))[0]:
            with contextlib.suppress(RuntimeError):  # it answers, and is busy
                await asyncio.to_thread(client.get_job_info, job)
        logged = log.result()
        info = client.get_job_info(job)
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"the connection to the cluster is lost ({last_line(error)}). The job may still run: `ray job status {job}` "
            "shows it. If the head is gone, start it again; if a run had begun, the same command with --resume continues it."
        ) from error
    finally:
        log.cancel()
    why = "its log above says why." if logged else f"{(info.message or 'Ray does not say why').strip()}\n"
    return str(info.status.value), why


async def _log(client: Any, job: str) -> bool:
    """Prints a job's log to its end; whether there was one."""
    logged = False
    async for lines in client.tail_job_logs(job):
        sys.stdout.write(lines)
        sys.stdout.flush()
        logged = logged or bool(lines.strip())
    return logged
