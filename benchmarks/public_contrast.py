"""Public contrast beside DP-GCL over epsilon: a public model, trained on four colours, is adapted privately to four others.

python -m benchmarks.public_contrast [RUNS [PROCESSES]]      3 runs of each, one process; what is there is not trained again

Both sides train all weights, take as many passes of the model in a step, as many steps, and each the best of the same rates,
by one run of each at epsilon 1. The runs are in runs/public-contrast. Public data alone reaches what the public
model does before any private record is read: "start".
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.record import write_result
from benchmarks.trained import measured, trained
from dpfed.report.style import INK, MUTED, SERIES, figure, png_bytes

FOLDER = Path("runs/public-contrast")
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "public-contrast.png"
METRICS = ("image_to_text_R@10", "text_to_image_R@10")
EPSILONS = (0.1, 0.25, 1.0, 8.0)
TUNED_AT = 1.0
STEPS, PASSES = 120, 1024  # passes: of the model over a record, in a step
SETTINGS: dict[str, dict[str, Any]] = {
    "group": {"bounding.method": "group", "bounding.group_size": 4, "privacy.batch": PASSES},
    "public": {
        "bounding.method": "public",
        "bounding.group_size": "",
        "privacy.batch": PASSES // 4,
        "public.records": 3,
        "public.source": "shapes",
        "public.half": "first",
    },
}
RATES = (5e-4, 1e-3, 2e-3)
NAMES = {"group": "DP-GCL, groups of 4 private records", "public": "one private record and 3 public ones"}


def main(runs: int = 3, processes: int = 1) -> None:
    """Trains what is missing, writes ``benchmarks/results/public-contrast.json`` and ``docs/pictures/public-contrast.png``."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    start = measured(trained(FOLDER / "start", "adapt/shapes-public", {}), METRICS)
    rates = {}
    with ThreadPoolExecutor(processes) as pool:
        tuning = [(method, TUNED_AT, rate, 0) for method in SETTINGS for rate in RATES]
        tuned = dict(zip(tuning, pool.map(_adapt, tuning), strict=True))
        for method in SETTINGS:
            rates[method] = max(RATES, key=lambda rate: sum(tuned[method, TUNED_AT, rate, 0]["after"].values()))
        others = [
            (method, epsilon, rates[method], run)
            for epsilon in EPSILONS
            for method in SETTINGS
            for run in range(runs)
            if (method, epsilon, rates[method], run) not in tuned
        ]
        every = tuned | dict(zip(others, pool.map(_adapt, others), strict=True))
    found = [
        {"method": method, "epsilon": epsilon, "rate": rate, "run": run, **values}
        for (method, epsilon, rate, run), values in every.items()
    ]
    figures = {
        "steps": STEPS,
        "passes": PASSES,
        "rates": rates,
        "plans": {method: _plan(method, rates[method]) for method in SETTINGS},
        "start": next(values["before"] for values in every.values()),
        "start_on_its_own_colours": start["after"],
        "runs": found,
    }
    PICTURE.write_bytes(png_bytes(_chart(figures)))
    # The noise is secret and fresh in every run, so there is no seed to give.
    print(write_result("public-contrast", figures, seeds=[]))


def _adapt(wanted: tuple[str, float, float, int]) -> dict[str, Any]:
    method, epsilon, rate, run = wanted
    changes = SETTINGS[method] | {
        "model.architecture": f"local-dir:{FOLDER}/start/model",
        "privacy.epsilon": epsilon,
        "privacy.steps": STEPS,
        "optimizer.learning_rate": rate,
        "optimizer.schedule": "cosine",
        "evaluation.every": 0,
        "adaptation.image": "full",
        "adaptation.text": "full",
        "adaptation.rank": "",
        "bounding.engine": "layerwise",
    }
    return measured(trained(FOLDER / f"{method}-{epsilon}-{rate:g}-{run}", "adapt/shapes", changes), METRICS)


def _plan(method: str, rate: float) -> dict[str, float]:
    """The noise on the sum at epsilon 1, in clip norms."""
    privacy = json.loads((FOLDER / f"{method}-{TUNED_AT}-{rate:g}-0" / "results.json").read_text(encoding="utf-8"))["privacy"]
    return {key: privacy[key] for key in ("noise_multiplier", "sensitivity", "groups") if key in privacy}


def _chart(figures: dict[str, Any]) -> Any:
    canvas, axes = figure(6.4, 3.4)
    for method, colour in zip(SETTINGS, SERIES, strict=False):
        curve = []
        for epsilon in EPSILONS:
            means = [
                50 * sum(run["after"].values())
                for run in figures["runs"]
                if (run["method"], run["epsilon"], run["rate"]) == (method, epsilon, figures["rates"][method])
            ]
            curve.append((epsilon, sum(means) / len(means)))
            axes.plot([epsilon] * len(means), means, ".", color=colour, markersize=5, alpha=0.6)
        axes.plot(*zip(*curve, strict=True), "-", color=colour, linewidth=2, label=NAMES[method])
    axes.axhline(
        50 * sum(figures["start"].values()), color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="public data alone"
    )
    axes.set_xscale("log")
    axes.set_xticks(EPSILONS, list(map(str, EPSILONS)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.set_ylim(0, None)
    axes.set_xlabel("epsilon  (a dot is a run)", color=MUTED, fontsize=9)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.22), ncols=2, frameon=False, fontsize=8.5, labelcolor=INK)
    return canvas


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
