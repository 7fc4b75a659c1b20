"""A site worker that misbehaves in some steps: `python -m benchmarks.hostile_site FOLDER DOOR '{"2": "not a number"}'`.

It holds the site's own keys, so whatever it sends is properly signed. `benchmarks.federation_faults` starts it.
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

import torch

from dpfed.federation.door import serve
from dpfed.federation.folders import SiteFolder
from dpfed.federation.messages import alleged, seal
from dpfed.federation.packets import Packet
from dpfed.federation.serving import load_site
from dpfed.federation.vectors import decoded, encoded

SLOW = 6.0  # seconds beyond the deadline


class HostileSite:
    """Answers like a site, but for some steps.

    Args:
        folder: of the site.
        faults: what to do, by step.
    """

    def __init__(self, folder: SiteFolder, faults: dict[int, str]) -> None:
        self._terms, self._identity, self._faults = folder.terms(), folder.identity(), faults
        self._site = load_site(folder, print)
        self._before = Packet(b"", b"")
        self._deeds: dict[str, Callable[[Packet], Packet]] = {
            "not a number": lambda reply: self._forged(reply, lambda values: values.fill_(float("nan"))),
            "another shape": lambda reply: self._forged(reply, lambda values: values[:-5]),
            "norm too large": lambda reply: self._forged(reply, lambda values: values * 1e4),
            "replays an old answer": lambda reply: self._before,
            "slow": self._late,
            "killed in mid-step": lambda reply: os.kill(os.getpid(), signal.SIGKILL),
        }

    def answer(self, packet: Packet) -> Packet:
        """The site's answer, or what the site makes of it."""
        question, reply = alleged(packet), self._site.answer(packet)
        fault = self._faults.get(question.get("step")) if question.get("kind") == "step" else None
        answer = self._deeds[fault](reply) if fault else reply
        if question.get("kind") == "step":
            self._before = reply
        return answer

    def _forged(self, reply: Packet, change: Callable[[torch.Tensor], torch.Tensor]) -> Packet:
        fields = json.loads(reply.header)
        del fields["vector"]
        content = encoded(change(decoded(reply.vector)))
        return seal(self._identity, fields.pop("terms"), fields.pop("kind"), content, **fields)

    def _late(self, reply: Packet) -> Packet:
        time.sleep(self._terms.deadline + SLOW)
        return reply


def main() -> None:
    """Serves until it is killed."""
    folder, faults = SiteFolder.open(sys.argv[1]), json.loads(sys.argv[3])
    site = HostileSite(folder, {int(step): fault for step, fault in faults.items()})
    print("ready", flush=True)
    serve(Path(sys.argv[2]), site.answer, threading.Event())


if __name__ == "__main__":
    main()
