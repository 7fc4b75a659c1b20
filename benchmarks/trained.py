"""A run of a benchmark: a process of its own, trained once, resumed where it was interrupted, and read where it is finished."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def trained(
    run: Path,
    config: str,
    changes: dict[str, Any],
    code: Path | None = None,
    switches: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> dict[str, Any]:
    """What a run's results.json says; it is trained, or resumed, where that is not there yet.

    Args:
        run: its directory; absolute, if the code is another one.
        config: the name of a shipped configuration.
        changes: keys and values, as ``--set`` takes them.
        code: another copy of dpfed, whose folder is where the run begins; default: this one.
        switches: further environment variables.
        options: further arguments of ``dpfed pretrain``.
    """
    results = run / "results.json"
    if not results.exists():
        sets = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
        asked = (
            ["resume", str(run)]
            if (run / "ledger.jsonl").exists()
            else ["pretrain", config, "--run", str(run), *sets, *options]
        )
        # One thread, so that processes side by side do not slow each other down.
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | (switches or {})
        command = [sys.executable, "-m", "dpfed", *asked]
        subprocess.run(command, check=True, env=environment, cwd=code, stdout=subprocess.DEVNULL)
        print(run, flush=True)
    return json.loads(results.read_text(encoding="utf-8"))


_PLAN = ("noise_multiplier", "sensitivity", "groups", "sampling_rate")


def measured(results: dict[str, Any], names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Of `trained`'s results: ``{"before": {name: value}, "after": ..., "plan": ...}``; without evaluations on the way.

    The plan has the figures that its noise follows from.

    Args:
        results: of a run.
        names: the metrics that are wanted.
    """
    privacy = results["privacy"]
    found: dict[str, dict[str, float]] = {
        "before": {},
        "after": {},
        "plan": {key: privacy[key] for key in _PLAN if key in privacy},
    }
    for one in results["evaluations"]:
        if one["name"] in names:
            found["before" if one["model"] == "untrained" else "after"][one["name"]] = one["value"]
    return found
