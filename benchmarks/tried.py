"""Ways to use a noisy sum better, as prototypes: each against the same run without it, on three tasks at epsilon 1 and 8.

python -m benchmarks.tried DATA [PROCESSES]      DATA: CIFAR-10 as Parquet

Every way has its own learning rate in every cell. It is doubled as long as that gains, and where it never does, halved; the
search begins at the best rate of the run as it is, and at epsilon 8 at that of epsilon 1. A way that then gains a point on two
tasks at one of the epsilons is run three times, as is the run that it is compared with. What gains is built; the rest stays a
patch (`benchmarks/tried.patch`, switches are environment variables), which is applied to the commit that it was made for. The
runs are in runs/tried; what the result file holds is not trained again.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.kept import KeptRuns
from benchmarks.public_contrast import public_model
from benchmarks.trained import measured, trained

COMMIT = "57f76b1af653"
PATCH = Path(__file__).parent / "tried.patch"
FOLDER = Path("runs/tried").absolute()
METRICS = ("image_to_text_R@10", "text_to_image_R@10", "knn200_accuracy", "linear_probe_accuracy")
EPSILONS = (1, 8)
RUNS = 3  # of what is worth it
BATCH = 512  # a quarter of the configurations': two hours less of two cores
COMMON = {"optimizer.schedule": "constant", "privacy.batch": BATCH}
TASKS: dict[str, tuple[str, float, dict[str, Any]]] = {  # a configuration, the rate that the search begins with, changes
    "scratch": ("quickstart", 3e-3, COMMON),
    "adaptation": ("adapt/shapes", 4e-3, COMMON),
    "cifar10": ("cifar10-cpu", 1e-3, COMMON | {"bounding.group_size": 4, "privacy.steps": 100}),
}
# Changes, and the prototype's switches. Two views of a record take twice the time, so there are half as many records.
TRIED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "as it is": ({}, {}),
    "bias-corrected Adam": ({}, {"EXP_ADAMBC": "0.1"}),
    "one-gradient DiSK, filter 0.7": ({}, {"EXP_DISK": "0.7"}),
    "low-pass filter alone, 0.7": ({}, {"EXP_DISK": "0.7", "EXP_LOWPASS": "1"}),
    "average of the weights, 0.95": ({"optimizer.ema": 0.95}, {}),
    "automatic clipping": ({}, {"EXP_AUTOCLIP": "1"}),
    "two views of a record, losses averaged, half the batch": ({"privacy.batch": BATCH // 2}, {"EXP_MULT": "2"}),
    "groups of 8": ({"bounding.group_size": 8}, {}),
    "A of the adapters frozen": ({}, {"EXP_FREEZE_A": "1"}),
    "adapters on k, too": (
        {"adaptation.image_layers": '["q","k","v"]', "adaptation.text_layers": '["q","k","v"]'},
        {},
    ),
}
OF_ADAPTERS = ("A of the adapters frozen", "adapters on k, too")


def main(data: str, processes: int = 1) -> None:
    """Trains what is missing, and writes ``benchmarks/results/tried.json``."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    code = _prototypes()
    kept = KeptRuns("tried")

    def train(what: str, task: str, epsilon: float, rate: float, run: int = 0) -> dict[str, Any]:
        changes, switches = TRIED[what]
        config, _, base = TASKS[task]
        asked = base | {"privacy.epsilon": epsilon, "optimizer.learning_rate": rate, "evaluation.every": 0} | changes
        if task == "cifar10":
            asked["data.path"] = str(Path(data).absolute())
        if task == "adaptation":
            asked["model.architecture"] = f"local-dir:{public_model(run)}/model"
        place = FOLDER / f"{task}-{list(TRIED).index(what)}-{epsilon}-{rate:g}-{run}"
        key = {"tried": what, "task": task, "epsilon": epsilon, "rate": rate, "run": run}
        return kept.find(key, asked, lambda: measured(trained(place, config, asked, code, switches), METRICS))

    def search(what: str, task: str, rate: float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for epsilon in EPSILONS:

            def value(rate: float, epsilon: float = epsilon) -> float:
                found.append(train(what, task, epsilon, rate))
                return value_of(found[-1])

            rate = _best(value, rate)
        return found

    plain, *others = TRIED
    wanted = [(what, task) for what in others for task in TASKS if task == "adaptation" or what not in OF_ADAPTERS]
    with ThreadPoolExecutor(processes) as pool:
        first = {task: pool.submit(search, plain, task, TASKS[task][1]) for task in TASKS}
        rates = {task: best_run(cell.result(), EPSILONS[0])["rate"] for task, cell in first.items()}
        rest = {cell: pool.submit(search, *cell, rates[cell[1]]) for cell in wanted}
        cells = {(plain, task): cell.result() for task, cell in first.items()}
        cells |= {cell: found.result() for cell, found in rest.items()}
        again = [
            (*cell, epsilon, best_run(cells[cell], epsilon)["rate"], run)
            for run in range(1, RUNS)
            for cell in cells
            if cell[0] in (plain, *_promising(cells))
            for epsilon in EPSILONS
        ]
        runs = [run for cell in cells.values() for run in cell] + list(pool.map(lambda one: train(*one), again))
    kept.finish(runs, patched=COMMIT)


_Cells = dict[tuple[str, str], list[dict[str, Any]]]  # what was tried, on which task: its runs


def _promising(cells: _Cells) -> list[str]:
    """What gains a point of the mean of two figures on two tasks, at one epsilon at least."""
    plain, *others = TRIED

    def gains(what: str, epsilon: float) -> int:
        found = 0
        for task in TASKS:
            if (what, task) in cells:
                ours, theirs = (value_of(best_run(cells[name, task], epsilon)) for name in (what, plain))
                found += ours - theirs >= 0.01
        return found

    return [what for what in others if any(gains(what, epsilon) >= 2 for epsilon in EPSILONS)]


def best_run(cell: list[dict[str, Any]], epsilon: float) -> dict[str, Any]:
    """Of the runs that a cell's rate was searched by, at one epsilon, that which ends best."""
    searched = (run for run in cell if run["epsilon"] == epsilon and run["run"] == 0)
    return max(searched, key=value_of)


def value_of(run: dict[str, Any]) -> float:
    """The mean of the two figures that a task has."""
    return statistics.mean(run["after"].values())


def _best(run: Callable[[float], float], rate: float) -> float:
    """The rate with the largest value, where it is doubled as long as that gains, and where it never does, halved."""
    best = run(rate)
    for factor in (2.0, 0.5):
        moved = False
        while (value := run(rate * factor)) > best:
            rate, best, moved = rate * factor, value, True
        if moved:
            break
    return rate


def _prototypes() -> Path:
    """The code with the prototypes: a work tree beside the runs."""
    place = FOLDER / "code"
    if not place.exists():
        root = PATCH.parents[1]
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", place, COMMIT], cwd=root, check=True)
        subprocess.run(["git", "apply", PATCH], cwd=place, check=True)
    return place


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
