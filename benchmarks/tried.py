"""Ways to use a noisy sum better, as prototypes: each against the same run without it, on three tasks at epsilon 1 and 8.

python -m benchmarks.tried DATA [PROCESSES]      DATA: CIFAR-10 as Parquet

Every way has its own learning rate on every task. At epsilon 1 it is doubled as long as that gains, and where it never does,
halved; the search begins at the best rate of the run as it is. At epsilon 8 it stays. What gains is built; the rest stays a
patch (`benchmarks/tried.patch`, switches are environment variables), which is applied to the commit that it was made for. The
runs are in runs/tried, one of each; what the result file holds is not trained again.
"""

from __future__ import annotations

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
    places = {
        "scratch": {},
        "adaptation": {"model.architecture": f"local-dir:{public_model(0)}/model"},
        "cifar10": {"data.path": str(Path(data).absolute())},
    }

    def search(what: str, task: str, rate: float) -> list[dict[str, Any]]:
        changes, switches = TRIED[what]
        config, _, base = TASKS[task]
        found: list[dict[str, Any]] = []
        for epsilon in EPSILONS:

            def run(rate: float, epsilon: int = epsilon) -> float:
                asked = (
                    base
                    | places[task]
                    | {"privacy.epsilon": epsilon, "optimizer.learning_rate": rate, "evaluation.every": 0}
                    | changes
                )
                place = FOLDER / f"{task}-{list(TRIED).index(what)}-{epsilon}-{rate:g}"
                key = {"tried": what, "task": task, "epsilon": epsilon, "rate": rate}
                found.append(kept.find(key, asked, lambda: measured(trained(place, config, asked, code, switches), METRICS)))
                return sum(found[-1]["after"].values())

            rate = _best(run, rate, (2.0, 0.5) if epsilon == EPSILONS[0] else ())
        return found

    plain, *others = TRIED
    wanted = [(what, task) for what in others for task in TASKS if task == "adaptation" or what not in OF_ADAPTERS]
    with ThreadPoolExecutor(processes) as pool:
        first = {task: pool.submit(search, plain, task, TASKS[task][1]) for task in TASKS}
        rates = {task: best_rate(cell.result(), EPSILONS[0]) for task, cell in first.items()}
        rest = [pool.submit(search, what, task, rates[task]) for what, task in wanted]
        runs = [run for cell in [*first.values(), *rest] for run in cell.result()]
    kept.finish(runs, patched=COMMIT)


def best_rate(cell: list[dict[str, Any]], epsilon: float) -> float:
    """Of a cell's runs at one epsilon, the rate of that which ends best."""
    return max((run for run in cell if run["epsilon"] == epsilon), key=lambda run: sum(run["after"].values()))["rate"]


def _best(run: Callable[[float], float], rate: float, factors: tuple[float, ...]) -> float:
    """The rate with the largest value, where it is multiplied with the first factor that gains, as long as that gains."""
    best = run(rate)
    for factor in factors:
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
