"""A site worker that misbehaves in some steps: `python -m benchmarks.hostile_site FOLDER DOOR '{"2": "not a number"}'`.

The worker commits each fault once: in the first step, from the given step on, in which the coordinator asks the site.
``FOLDER/faults.jsonl`` records that step. The worker holds the site's own keys, so all its messages are properly signed. If the
worker is killed, another one starts at once, with PyTorch already loaded. `benchmarks.federation_faults` starts this module.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from dpfed.federation.site.folder import SiteFolder
from dpfed.federation.site.local_socket import serve
from dpfed.federation.site.serving import load_site
from dpfed.protocol.messages import Packet, alleged, sign
from dpfed.protocol.vectors import decoded, encoded, form_of_sums

SLOW = 6.0  # seconds beyond the deadline


class HostileSite:
    """A site that answers properly, except in some steps.

    Args:
        folder: Folder of the site.
        faults: Names of faults, by the earliest step in which each is committed.
    """

    def __init__(self, folder: SiteFolder, faults: dict[int, str]) -> None:
        self._terms, self._identity, self._done = folder.terms(), folder.identity(), folder.path / "faults.jsonl"
        done = {fault for _, fault in done_in(folder)}
        self._faults = [(step, fault) for step, fault in sorted(faults.items()) if fault not in done]
        self._site = load_site(folder, print)
        self._before = Packet(b"", b"")
        self._deeds: dict[str, Callable[[Packet], Packet]] = {
            "": lambda reply: reply,
            "not a number": lambda reply: self._forged(reply, lambda values: spoilt(values, float("nan"))),
            "another shape": lambda reply: self._forged(reply, lambda values: values[:-5]),
            "norm too large": lambda reply: self._forged(reply, lambda values: values * 10_000),
            "replays an old answer": lambda reply: self._before,
            "slow": self._late,
            "killed in mid-step": lambda reply: os.kill(os.getpid(), signal.SIGKILL),
        }

    def answer(self, packet: Packet) -> Packet:
        """Returns the site's answer, with the fault of the step if it has one."""
        question, reply = alleged(packet), self._site.answer(packet)
        if question.get("kind") != "step":
            return reply
        answer = self._deeds[self._next(question["step"])](reply)
        self._before = reply
        return answer

    def _next(self, step: int) -> str:
        """Returns the fault of this step (``''``: none), and first records it in ``faults.jsonl``."""
        if not self._faults or step < self._faults[0][0]:
            return ""
        _, fault = self._faults.pop(0)
        with open(self._done, "a", encoding="utf-8") as file:
            file.write(json.dumps([step, fault]) + "\n")
        return fault

    def _forged(self, reply: Packet, change: Callable[[torch.Tensor], torch.Tensor]) -> Packet:
        fields = json.loads(reply.header)
        del fields["vector"]
        content = encoded(change(decoded(reply.vector, form_of_sums(self._terms))))
        return sign(self._identity, fields.pop("terms"), fields.pop("kind"), content, **fields)

    def _late(self, reply: Packet) -> Packet:
        time.sleep(self._terms.deadline + SLOW)
        return reply


def spoilt(values: torch.Tensor, number: float) -> torch.Tensor:
    """Returns a spoilt sum.

    Args:
        values: Sum of the site.
        number: Number that replaces every number of the sum. For a sum of whole numbers, their largest value is taken instead,
            with which a total would overflow.
    """
    return torch.full_like(values, number if values.is_floating_point() else torch.iinfo(values.dtype).max)


def done_in(folder: SiteFolder) -> list[tuple[int, str]]:
    """Returns the faults that a site has committed, each with its step."""
    path = folder.path / "faults.jsonl"
    return [tuple(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def main() -> None:
    """Serves the site, and replaces a worker that was killed by a new one."""
    while True:
        worker = os.fork()
        if not worker:
            _serve(SiteFolder.open(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
        _, status = os.waitpid(worker, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(os.waitstatus_to_exitcode(status))


def _serve(folder: SiteFolder, socket: Path, faults: dict[str, str]) -> NoReturn:
    """Serves the site until the process is killed."""
    site = HostileSite(folder, {int(step): fault for step, fault in faults.items()})
    print("ready", flush=True)
    serve(socket, site.answer, threading.Event())
    sys.exit()


if __name__ == "__main__":
    main()
