"""Why records cannot be read, said in few words however many they are."""

from __future__ import annotations

import re
from collections.abc import Iterable

_EXAMPLES = 3  # records that are named for each reason
_COUNT = re.compile(r" \((?:after )?[\d,]+ [^()]*\)$")  # "(12 bytes not processed)" differs from record to record


def by_reason(broken: Iterable[tuple[str, str]]) -> list[str]:
    """Groups unreadable records by their reason: damaged archives first, as each stands for many records, then by number.

    Args:
        broken: (id, reason) of each; the reason of an archive begins with "archive".

    Returns:
        A phrase for each reason, with the number of records and up to three of them: ``no image (5): a, b, c, ...``.
    """
    groups: dict[str, list[str]] = {}
    for id, reason in broken:
        kind = _COUNT.sub("", reason)
        groups.setdefault(kind, []).append(id + reason.removeprefix(kind))
    ordered = sorted(groups.items(), key=lambda group: (not group[0].startswith("archive "), -len(group[1])))
    return [f"{kind} ({len(ids):,}): {', '.join(ids[:_EXAMPLES])}{', ...' * (len(ids) > _EXAMPLES)}" for kind, ids in ordered]
