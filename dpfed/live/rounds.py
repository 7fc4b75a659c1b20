"""The steps of a federation as its journal has them, and what each site did in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfed.protocol.journal import Step


@dataclass(frozen=True)
class Round:
    """A step.

    Attributes:
        step: from 0.
        event: ``opened``, ``collected`` or ``discarded``.
        arrived: sites whose answers count.
        missing: the others, and why they do not.
        reason: why the step was discarded.
    """

    step: int
    event: str
    arrived: tuple[str, ...] = ()
    missing: Mapping[str, str] = ()  # type: ignore[assignment]
    reason: str = ""


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


def rounds_of(journal: Iterable[Mapping[str, Any]]) -> list[Round]:
    """The steps, in order, each as the journal's last line about it has it."""
    last: dict[int, Mapping[str, Any]] = {}
    for line in journal:
        last[int(line["step"])] = line
    return [
        Round(
            step,
            str(line["event"]),
            tuple(map(str, line.get("arrived", ()))),
            {str(site): str(why) for site, why in dict(line.get("missing", {})).items()},
            str(line.get("reason", "")),
        )
        for step, line in sorted(last.items())
    ]


def sites_of(names: Sequence[str], rounds: Sequence[Round], arrival_log: Mapping[int, Step]) -> list[SiteRow]:
    """Every site's row.

    Args:
        names: of the terms.
        rounds: the steps.
        arrivals: of the last ones, while the run lasts.
    """
    over = [one for one in rounds if one.event != "opened"]
    counted = Counter(site for one in over if one.event == "collected" for site in one.arrived)
    missed = Counter(site for one in over for site in one.missing)
    why = {site: f"step {one.step}: {reason}" for one in over for site, reason in one.missing.items()}
    seconds = {site: value for _, step in sorted(arrival_log.items()) for site, value in step.seconds.items()}
    return [
        SiteRow(
            name,
            counted[name],
            missed[name],
            why.get(name, ""),
            seconds.get(name),
            tuple(_did(name, one) for one in over[-SiteRow.SHOWN :]),
        )
        for name in names
    ]


def _did(site: str, one: Round) -> str:
    if site not in one.arrived:
        return "missed"
    return "answered" if one.event == "collected" else "discarded"
