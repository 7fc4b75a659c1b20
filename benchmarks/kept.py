"""Runs of a benchmark that takes hours: what its result file holds is not trained again, on this machine or another."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.record import RESULTS, commit, write_result

_PLACES = ("data.path", "model.architecture", "model.start")  # where things are differs between machines


class KeptRuns:
    """The runs of one result file, ``figures["runs"]``; every new one is written at once.

    An entry has what names the run (such as method and epsilon), ``settings`` (a digest of its changed keys), ``commit``, and
    what was found. A run whose settings have changed since is trained again.

    Args:
        name: of the result file.
    """

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, Lock()
        path = RESULTS / f"{name}.json"
        self._figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}
        self._runs: list[dict[str, Any]] = self._figures.get("runs", [])

    def find(self, key: dict[str, Any], changes: dict[str, Any], train: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The entry of a run: the kept one, or what ``train()`` finds, which is kept from then on.

        Args:
            key: names the run among those of the benchmark.
            changes: keys and values of its configuration; a digest of them is compared, places left out.
            train: trains and measures it.
        """
        settings = hashlib.sha256(
            json.dumps({name: value for name, value in sorted(changes.items()) if name not in _PLACES}).encode()
        ).hexdigest()[:12]
        with self._lock:
            for entry in self._runs:
                if entry["settings"] == settings and key.items() <= entry.items():
                    return entry
        entry = {**key, "settings": settings, "commit": commit(), **train()}
        with self._lock:
            self._runs = [one for one in self._runs if not key.items() <= one.items()] + [entry]
            write_result(self._name, {**self._figures, "finished": False, "runs": self._runs}, seeds=[])
        return entry

    def finish(self, wanted: list[dict[str, Any]], **figures: Any) -> dict[str, Any]:
        """Writes the result file with the wanted entries alone, and returns its figures.

        Args:
            wanted: entries, as `find` returned them.
            figures: what else the file holds.
        """
        whole = {**figures, "finished": True, "runs": wanted}
        # The noise is secret and fresh in every run, so there is no seed to give.
        print(write_result(self._name, whole, seeds=[]))
        return whole


def trained(run: Path, config: str, changes: dict[str, Any], options: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a run's results.json says; it is trained, or resumed, where that is not there yet.

    Args:
        run: its directory.
        config: the name of a shipped configuration.
        changes: keys and values, as ``--set`` takes them.
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
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "dpfed", *asked]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
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
