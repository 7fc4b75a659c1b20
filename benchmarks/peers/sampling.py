"""A step's draw by every sampler, in turn: time and memory at N = 10^6 and 10^7."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.contenders import SAMPLERS
from benchmarks.peers.results import keep, kept
from benchmarks.peers.turns import cases, in_turns, report

RECORDS, BATCH, ROUNDS = (10**6, 10**7), 4096, 3


def measure(again: bool) -> None:
    """The cells that are not there yet, or all."""
    for records in RECORDS:
        name = f"N = {records:,}, B = {BATCH:,}"
        if again or name not in kept("sampling"):
            report(name, found := of_cell(records, BATCH, ROUNDS))
            keep("sampling", {name: found}, rounds=ROUNDS)


def of_cell(records: int, batch: int, rounds: int) -> dict[str, Any]:
    """All samplers that are there."""
    with cases([name for name, sampler in SAMPLERS.items() if sampler.there]) as ones:
        return in_turns(ones, {"records": records, "batch": batch}, {}, rounds, "dpfed sampler")
