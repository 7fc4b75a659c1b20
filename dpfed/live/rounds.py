"""Summarises each site's answers in a federation, from the coordinator's journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfed.protocol.journal import Step


@dataclass(frozen=True)
class SiteRow:
    """A site's answers so far.

    Attributes:
        name: Name of the site.
        answered: Number of steps in which the site's answer was counted.
        missed: Number of steps without a valid answer of the site.
        last_reason: Step and reason of the last missed answer; empty: no answer was missed.
        seconds: Seconds that the coordinator waited for the site's last answer; ``None``: not known.
        past: Outcome of each of the last steps: ``answered``, ``missed``, or ``discarded`` if the site answered and the step
            was discarded.
    """

    name: str
    answered: int
    missed: int
    last_reason: str
    seconds: float | None
    past: tuple[str, ...]

    SHOWN = 60


def sites_of(names: Sequence[str], steps: Sequence[Mapping[str, Any]], arrival_log: Mapping[int, Step]) -> list[SiteRow]:
    """Returns the row of every site.

    Args:
        names: Names of the sites in the federation's terms.
        steps: Last line of the coordinator's journal about each step, in order.
        arrival_log: Arrival times of the answers to the last steps, by step; empty if no process is working on the run.
    """
    over = [line for line in steps if line["event"] != "opened"]
    counted = Counter(site for line in over if line["event"] == "collected" for site in line.get("arrived", ()))
    missed = Counter(site for line in over for site in line.get("missing", ()))
    why = {site: f"step {line['step']}: {reason}" for line in over for site, reason in line.get("missing", {}).items()}
    seconds = {site: value for _, step in sorted(arrival_log.items()) for site, value in step.seconds.items()}
    return [
        SiteRow(
            name,
            counted[name],
            missed[name],
            why.get(name, ""),
            seconds.get(name),
            tuple(_did(name, line) for line in over[-SiteRow.SHOWN :]),
        )
        for name in names
    ]


def _did(site: str, line: Mapping[str, Any]) -> str:
    if site not in line.get("arrived", ()):
        return "missed"
    return "answered" if line["event"] == "collected" else "discarded"
