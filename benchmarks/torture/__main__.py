"""`python -m benchmarks.torture [PART ...] [--seed N] [--kills N] [--folder DIR]`: injects faults into runs, and checks that
each ends like an undisturbed run. Writes ``results/torture-PART.json``; the exit code is 1 if a run lost something, or reported
less than it spent.
"""

from __future__ import annotations

import argparse
import random
import re
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.record import write_result
from benchmarks.torture import cluster, federation
from benchmarks.torture.machine import Machine

_OTHERS = 8  # full disks, read-only folders and damaged checkpoints, each


def machine(folder: Path, dice: random.Random, kills: int) -> dict[str, Any]:
    """Kills local runs at random moments, and gives others full disks, read-only folders and damaged checkpoints.

    Args:
        folder: New folder for all files.
        dice: Random generator that decides which fault happens when.
        kills: Least number of times that a run is killed.
    """
    place, lives, told = Machine(folder, dice), [], []
    while len(lives) < kills:
        one = place.kill()
        lives += one["lives"]
        told.append(one)
        _say(f"{len(lives)} deaths; {one['wrong'] or 'nothing lost'}")
    for act in (place.fill, place.lock, place.damage):
        for _ in range(_OTHERS if kills >= 50 else 1):
            told.append(act())
            _say(f"{told[-1]['what']}; {told[-1]['wrong'] or 'nothing lost'}")
    others = Counter(one["what"].split(":")[0] for one in told if "what" in one)
    return {
        "deaths": dict(Counter(life["what"] for life in lives)),
        "died": sum(life["ended"] < 0 for life in lives),
        "after steps": sorted(life["after"] for life in lives),
        "others": dict(others),
        "refused with a sentence": sum(bool(one.get("refusal")) for one in told),
        "sentences": sorted({re.sub(r"run-\d+", "RUN", one["refusal"]) for one in told if one.get("refusal")}),
        "wrong": [text for one in told for text in one["wrong"]],
    }


PARTS = {
    "machine": lambda folder, dice, kills: machine(folder, dice, kills),
    "cluster": lambda folder, dice, kills: cluster.torture(folder, dice),
    "federation": lambda folder, dice, kills: federation.torture(folder, dice),
}


def main() -> None:
    """Runs the parts that the command line names, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(2**32), help="decides what happens when (default: random)"
    )
    parser.add_argument("--kills", type=int, default=50, help="deaths of a local run (default: 50)")
    parser.add_argument("--folder", type=Path, help="an existing folder on the storage to try (default: the temporary one)")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"PART is one of {', '.join(PARTS)}, and not {', '.join(sorted(unknown))}")
    wrong = []
    for part in options.parts or PARTS:
        _say(f"{part}, seed {options.seed}")
        folder = Path(tempfile.mkdtemp(prefix="dpfed-torture-", dir=options.folder))
        figures = PARTS[part](folder, random.Random(f"{part} {options.seed}"), options.kills)
        path = write_result(f"torture-{part}", figures, [options.seed])
        _say(f"{part}: {figures['wrong'] or 'nothing lost, nothing under-reported'}; {path}")
        wrong += figures["wrong"]
        if not figures["wrong"]:
            shutil.rmtree(folder)
        else:
            _say(f"everything is kept in {folder}")
    sys.exit(bool(wrong))


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
