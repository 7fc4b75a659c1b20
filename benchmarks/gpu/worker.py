"""Does the parts of a call, one after the other, in the process that `python -m benchmarks.gpu` starts and watches.

A part that fails ends the process, because the process may have lost its GPU; the next process begins with the next part.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import parts
from benchmarks.gpu.place import Part, Place, Results, TimeIsUp
from dpfed.errors import UserError

DONE, FAILED, UNFINISHED = 0, 4, 3


def main(call: str, work: str, data: str | None, out: str | None, command: str, ends: float, tiny: bool) -> int:
    """Begins or continues a call; returns the exit code: `DONE`, `FAILED` or `UNFINISHED`.

    Args:
        call: Kind of call: ``measure`` or ``table``.
        work: See `Place`.
        data: See `Place`.
        out: See `Results`.
        command: See `Results`.
        ends: See `Place`.
        tiny: See `Place`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    place = Place(device, Path(work), None if data is None else Path(data), ends, tiny)
    results = Results(place.work, command, None if out is None else Path(out))
    calls = place.work / "this-call.json"  # what was tried in this call, by processes before this one, too
    tried: dict[str, str] = json.loads(calls.read_text(encoding="utf-8")) if calls.exists() else {}

    def note(part: Part, state: str) -> None:
        tried[part.name] = state
        calls.write_text(json.dumps(tried), encoding="utf-8")

    left_over = False
    for part in getattr(parts, call)():
        if part.name in tried or (tiny and not part.tiny) or _passed(results.find(part)):
            continue
        if tried and place.left < part.seconds and not tiny:
            print(f"{part.name}: not begun, it takes about {part.seconds:.0f} s", flush=True)
            left_over = True
            continue  # a shorter one may fit
        began = time.time()
        try:
            figures = part.work(place)
        except TimeIsUp as reached:
            note(part, str(reached))
            print(f"{part.name}: {reached}", flush=True)
            return UNFINISHED
        except Exception as error:  # whatever it is, the other parts are still of use
            if not isinstance(error, (UserError, torch.OutOfMemoryError)):
                traceback.print_exc()
            words = " ".join(str(error).split())[:300]
            results.add(part, {"failed": f"{type(error).__name__}: {words}"})
            note(part, "failed")
            print(f"{part.name}: failed: {words}", flush=True)
            return FAILED
        results.add(part, figures)
        note(part, "done" if _passed(figures) else "failed")
        print(f"{part.name}: {_words(figures)}  ({time.time() - began:.0f} s)", flush=True)
    return UNFINISHED if left_over else DONE


def _passed(figures: Any) -> bool:
    """Returns whether a part is done: whether it has figures and, if it is a check, passed."""
    if isinstance(figures, dict):
        return "failed" not in figures and figures.get("passed", True) is True
    return figures is not None


def _words(figures: Any) -> str:
    text = json.dumps(figures)
    return text if len(text) < 400 else text[:400] + " ..."


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
