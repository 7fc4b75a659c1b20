"""What each site of a federation did, from its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfed.protocol.journal import Step


@dataclass(frozen=True)
class SiteRow:
    """What a site did so far.

    Attributes:
        name: of the site.
        answered: steps in which its answer was counted.
        missed: steps in which it was not there, or its answer was no good.
        last_reason: why, the last time.
        seconds: that its last answer took, as the coordinator saw it; ``None``: not known.
        past: of the last steps: ``answered``, ``missed``, or ``discarded`` where the step was discarded.
    """

    name: str
    answered: int
    missed: int
    last_reason: str
    seconds: float | None
    past: tuple[str, ...]

    SHOWN = 60


def sites_of(names: Sequence[str], steps: Sequence[Mapping[str, Any]], arrival_log: Mapping[int, Step]) -> list[SiteRow]:
    """Every site's row.

    Args:
        names: of the terms.
        steps: in order, each as the journal's last line about it has it.
        arrival_log: of the last ones, while the run lasts.
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
