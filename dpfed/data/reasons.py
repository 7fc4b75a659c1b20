"""Summarises why records cannot be read, in few words, however many records there are."""

from __future__ import annotations

import re
from collections.abc import Iterable

OUTSIDE = "outside of the source's folder"

_EXAMPLES = 3  # records that are named for each reason
_COUNT = re.compile(r" \((?:after )?[\d,]+ [^()]*\)$")  # "(12 bytes not processed)" is different for each record


def by_reason(broken: Iterable[tuple[str, str]]) -> list[str]:
    """Groups unreadable records by their reason.

    Damaged archives come first, because each of them contains many records. The other reasons follow, the most frequent first.

    Args:
        broken: (id, reason) of each unreadable record or archive; the reason of an archive begins with "archive".

    Returns:
        A phrase for each reason, with the number of records and the ids of up to three of them: ``no image (5): a, b, c, ...``.
        Line breaks and other control characters in ids become escapes.
    """
    groups: dict[str, list[str]] = {}
    for id, reason in broken:
        kind = _COUNT.sub("", reason)
        groups.setdefault(kind, []).append(id + reason.removeprefix(kind))
    ordered = sorted(groups.items(), key=lambda group: (not group[0].startswith("archive "), -len(group[1])))
    return [f"{visible(kind)} ({len(ids):,}): {_some(ids)}" for kind, ids in ordered]


def _some(ids: list[str]) -> str:
    return ", ".join(map(visible, ids[:_EXAMPLES])) + ", ..." * (len(ids) > _EXAMPLES)


def mending(broken: Iterable[tuple[str, str]], first: str = "repair them") -> str:
    """Returns advice on unreadable records, as the end of a sentence.

    Args:
        broken: (id, reason) of each record.
        first: Best remedy, with which the advice begins.
    """
    advice = f"{first}, or leave them out with --skip-broken"
    if any(reason == OUTSIDE for _, reason in broken):
        advice += ", or read the files outside with `dpfed data import --allow-outside`"
    return advice


def visible(name: str) -> str:
    """Returns a name in one line: control characters, which could break a message or steer a terminal, become escapes."""
    return "".join(part if part.isprintable() else part.encode("unicode_escape").decode() for part in name)
