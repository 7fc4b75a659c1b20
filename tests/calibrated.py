"""Noise multipliers that the product found before: a search takes a second, and a session would make some hundred of them.

`calibrated.json` holds them by the search's question: the library's version, its event, epsilon, delta and accountant. So a
mechanism that is broken on purpose asks another question. What is kept must keep its promise whenever it is used, and
`make test-slow` searches all of it anew. Tests of the search itself, in `tests/privacy`, never see what is kept.

What a session had to search for lies in its folder, and ``python -m tests.calibrated FOLDER`` adds it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

from dpfed.privacy import accounting

FILE = Path(__file__).with_suffix(".json")
FOLDER = "DPFED_TESTS_CALIBRATED"  # variable: where the processes of a session leave what they found
ANEW = "DPFED_TESTS_SEARCH"  # variable: what is kept is searched for as well, and compared
search = accounting._multiplier


def question(target: float, draft: object, steps: int, delta: float, accountant: str) -> str:
    """All that the answer depends on; `draft` has a noise multiplier of 1, and the event at any other follows from it."""
    return repr((version("dp-accounting"), target, draft.sampler.relation, draft.event(steps), delta, accountant))


def kept_or_searched(target, draft, steps, delta, accountant) -> float:
    """Stands for `accounting._multiplier`."""
    key = hashlib.sha256(question(target, draft, steps, delta, accountant).encode()).hexdigest()[:24]
    place = Path(os.environ.get(FOLDER, "/nowhere"), key)
    known = float(place.read_text()) if place.exists() else _kept().get(key)
    if known is not None and ANEW not in os.environ:
        if accounting.epsilon(accounting._with(draft, known), steps, delta, accountant) <= target:
            return known
    multiplier = search(target, draft, steps, delta, accountant)
    assert known in (None, multiplier), f"{FILE} is out of date: {known} for {multiplier}; delete it"
    if place.parent.is_dir():
        half = place.with_suffix(f".{os.getpid()}")
        half.write_text(str(multiplier))
        half.replace(place)
    return multiplier


def keep() -> None:
    """From now on, in this process."""
    accounting._multiplier = functools.lru_cache(kept_or_searched)


@functools.cache
def _kept() -> dict[str, float]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


if __name__ == "__main__":
    multipliers = {path.name: float(path.read_text()) for path in Path(sys.argv[1]).iterdir() if not path.suffix}
    FILE.write_text(json.dumps(dict(sorted({**_kept(), **multipliers}.items())), indent=0) + "\n", encoding="utf-8")
