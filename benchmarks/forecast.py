"""Forecasts held against runs: does what `dpfed forecast` says before a run order what came of the run?

python -m benchmarks.forecast                  # all plans, into benchmarks/results/forecast.json; what is there is kept
python -m benchmarks.forecast shapes-e8 ...    # some of them; each takes a minute or two on one core
python -m benchmarks.forecast --forecasts      # only the forecasts again, of what was trained

Each plan is forecast on procedural images, which are nobody's data, and, where there are any, on public records like the
private ones. Then it is trained once. CIFAR-10 is left out where it is not (../shared/data/cifar10).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scipy.stats import rankdata, spearmanr

from benchmarks.record import RESULTS, figures, write_result
from dpfed.config import Config, load_config
from dpfed.config.shipped import shipped_file
from dpfed.progress import Silent
from dpfed.report.results import headlines, results_of
from dpfed.runs.forecast import forecast
from dpfed.runs.pretraining import pretrain
from dpfed.runs.stand_in import PROCEDURAL, SHAPES, chosen, declared_plan

CIFAR10 = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10"
_IMPORTED = 45_000  # training records of CIFAR-10 without the 5,000 for validation
WORK = Path("runs/forecast")  # of this benchmark: stores, the public start, runs
_SMALL = ["bounding.engine=layerwise", "training.device=cpu", "evaluation.every=0", f"data.stores={WORK}/stores"]
_SHAPES = ["model.width=16", "model.text_width=32", "model.text_layers=1", "model.embedding=32", "privacy.batch=768"]
_SHAPES = [*_SHAPES, "privacy.steps=40", *_SMALL]
_ADAPTED = [f"model.architecture=local-dir:{WORK}/shapes-public/model", "privacy.batch=512", "privacy.steps=24", *_SMALL]
_FULL = ["adaptation.image=full", "adaptation.text=full", "adaptation.rank="]
_CIFAR10 = [f"data.path={CIFAR10}", "model.width=16", "privacy.batch=768", "privacy.steps=50", "privacy.epsilon=8"]
_CIFAR10 = [*_CIFAR10, "evaluation.bank=10000", *_SMALL]
_CHANGES = {  # data set -> plan -> what differs from the first of them
    "shapes": {
        "e8": [],
        "e64": ["privacy.epsilon=64"],
        "e2": ["privacy.epsilon=2"],
        "e0.5": ["privacy.epsilon=0.5"],
        "s2": ["bounding.group_size=2"],
        "s16": ["bounding.group_size=16"],
        "b192": ["privacy.batch=192"],
        "b192-t160": ["privacy.batch=192", "privacy.steps=160"],
        "t10": ["privacy.steps=10"],
        "n3000": ["data.records=3000"],
    },
    "adapted": {
        "lora-e8": [],
        "full-e8": _FULL,
        "lora-e1": ["privacy.epsilon=1"],
        "full-e1": [*_FULL, "privacy.epsilon=1"],
        "lora-t8": ["privacy.steps=8"],
        "lora-b128": ["privacy.batch=128"],
    },
    "cifar10": {
        "e8": [],
        "e64": ["privacy.epsilon=64"],
        "e1": ["privacy.epsilon=1"],
        "s32": ["bounding.group_size=32"],
        "b192": ["privacy.batch=192"],
        "t12": ["privacy.steps=12"],
    },
}
_BASES = {"shapes": ("quickstart", _SHAPES), "adapted": ("adapt/shapes", _ADAPTED), "cifar10": ("cifar10-cpu", _CIFAR10)}
PLANS = {f"{data}-{name}": (data, changes) for data, plans in _CHANGES.items() for name, changes in plans.items()}


def config_of(plan: str) -> Config:
    """The configuration of a plan."""
    data, changes = PLANS[plan]
    base, common = _BASES[data]
    return load_config(shipped_file(base), [*common, *changes])


def told(name: str) -> dict[str, Any]:
    """What is forecast of a plan, by the public records that it is measured on."""
    data, _ = PLANS[name]
    config = config_of(name)
    plan = declared_plan(config, _IMPORTED if data == "cifar10" else None, Silent())
    forecasts: dict[str, Any] = {}
    for public in (PROCEDURAL, *([SHAPES] if data != "cifar10" else [])):
        started = time.perf_counter()
        found = forecast(config, plan, chosen(public, config, plan))
        took, facts = time.perf_counter() - started, found.facts()
        forecasts[public] = {**facts["configured"], "signal": facts["signal"], "verdict": found.verdict, "took": took}
    return forecasts


def trained(name: str) -> dict[str, Any]:
    """What came of a plan."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(config_of(name), Path(folder) / "run")
        results = headlines(results_of(json.loads(run.results.read_text(encoding="utf-8"))["evaluations"]), 2)
    return {
        "gain": sum(result.trained - result.untrained for result in results) / len(results),
        "figures": {result.name: [result.untrained, result.trained, result.change] for result in results},
        "seconds": time.perf_counter() - started,
    }


def make_public_start() -> None:
    """Trains the public model that the adapted ones start from, once."""
    if not (WORK / "shapes-public" / "model").exists():
        start = load_config(shipped_file("adapt/shapes-public"), ["training.device=cpu", f"data.stores={WORK}/stores"])
        shutil.rmtree(WORK / "shapes-public", ignore_errors=True)
        pretrain(start, WORK / "shapes-public")


def agreement(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Rank correlations of reach and gain, within each data set and over all, and the plans that are ranked worst."""
    found: dict[str, Any] = {}
    for public in (PROCEDURAL, SHAPES):
        groups = {data: [name for name in rows if rows[name]["data"] == data] for data in _CHANGES}
        for data, names in [*groups.items(), ("all", list(rows))]:
            names = [name for name in names if public in rows[name]["forecast"]]
            if len(names) < 3:
                continue
            reach = [rows[name]["forecast"][public]["reach"] for name in names]
            gain = [rows[name]["gain"] for name in names]
            off = dict(zip(names, (rankdata(reach) - rankdata(gain)).tolist(), strict=True))
            misses = {name: places for name, places in off.items() if abs(places) >= 2} if data != "all" else {}
            correlation = float(spearmanr(reach, gain).statistic)
            found[f"{data}, on {public}"] = {"plans": len(names), "rank_correlation": correlation, "misses": misses}
    return found


def main(names: list[str]) -> None:
    """Carries out what is not there yet, and writes the result file after each plan.

    Args:
        names: of plans; default: all. ``--forecasts`` makes the forecasts again, and keeps what was trained.
    """
    there, again = (RESULTS / "forecast.json").exists(), "--forecasts" in names
    rows: dict[str, dict[str, Any]] = figures("forecast")["plans"] if there else {}
    WORK.mkdir(parents=True, exist_ok=True)
    for name in [name for name in names if name in PLANS] or PLANS:
        data, _ = PLANS[name]
        if (name in rows and not again) or (again and name not in rows) or (data == "cifar10" and not CIFAR10.is_dir()):
            continue
        if data == "adapted":
            make_public_start()
        came = {key: rows[name][key] for key in ("gain", "figures", "seconds")} if again else trained(name)
        rows[name] = {"data": data, "forecast": told(name), **came}
        rows = {plan: rows[plan] for plan in PLANS if plan in rows}
        print(name, rows[name]["forecast"][PROCEDURAL]["reach"], rows[name]["gain"], flush=True)
        write_result("forecast", {"plans": rows, "agreement": agreement(rows)}, seeds=[])


if __name__ == "__main__":
    main(sys.argv[1:])
