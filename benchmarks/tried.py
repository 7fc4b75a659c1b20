"""Ways to use a noisy sum better, as prototypes: each against the same run without it, on three tasks at epsilon 1 and 8.

python -m benchmarks.tried DATA [PROCESSES]      DATA: CIFAR-10 as Parquet

What gains is built; the rest stays a patch (`benchmarks/tried.patch`, switches are environment variables), which is applied to
the commit that it was made for. The runs are in runs/tried, one of each; what the result file holds is not
trained again.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.kept import KeptRuns
from benchmarks.trained import measured, trained

COMMIT = "57f76b1af653"
PATCH = Path(__file__).parent / "tried.patch"
FOLDER = Path("runs/tried").absolute()
METRICS = ("image_to_text_R@10", "text_to_image_R@10", "knn200_accuracy", "linear_probe_accuracy")
EPSILONS = (1, 8)
BATCH = 512  # a quarter of the configurations': two hours less of two cores
COMMON = {"optimizer.schedule": "cosine", "privacy.batch": BATCH}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "scratch": ("quickstart", COMMON),
    "adaptation": ("adapt/shapes", COMMON | {"optimizer.learning_rate": 4e-3}),
    "cifar10": ("cifar10-cpu", COMMON | {"bounding.group_size": 4, "privacy.steps": 100, "optimizer.learning_rate": 1e-3}),
}
# Changes, and the prototype's switch. Two views of a record take twice the time, so there are half as many records.
TRIED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "as it is": ({}, {}),
    "two views of a record, losses averaged, half the batch": ({"privacy.batch": BATCH // 2}, {"EXP_MULT": "2"}),
    "automatic clipping": ({}, {"EXP_AUTOCLIP": "1"}),
    "one-gradient DiSK, filter 0.7": ({}, {"EXP_DISK": "0.7"}),
    "bias-corrected Adam": ({}, {"EXP_ADAMBC": "0.1"}),
    "constant rate": ({"optimizer.schedule": "constant"}, {}),
    "constant rate, average of the weights 0.95": ({"optimizer.schedule": "constant", "optimizer.ema": 0.95}, {}),
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
    trained(FOLDER / "public", "adapt/shapes-public", {}, code)

    def run(one: tuple[str, str, int]) -> dict[str, Any]:
        what, task, epsilon = one
        changes, switches = TRIED[what]
        config, base = TASKS[task]
        own = {
            "scratch": {},
            "adaptation": {"model.architecture": f"local-dir:{FOLDER}/public/model"},
            "cifar10": {"data.path": str(Path(data).absolute())},
        }[task]
        asked = base | own | {"privacy.epsilon": epsilon, "evaluation.every": 0} | changes
        place = FOLDER / f"{task}-{list(TRIED).index(what)}-{epsilon}"
        key = {"tried": what, "task": task, "epsilon": epsilon}
        return kept.find(key, asked, lambda: measured(trained(place, config, asked, code, switches), METRICS))

    wanted = [
        (what, task, epsilon)
        for what in TRIED
        for epsilon in EPSILONS
        for task in TASKS
        if task == "adaptation" or what not in OF_ADAPTERS
    ]
    with ThreadPoolExecutor(processes) as pool:
        found = list(pool.map(run, wanted))
    kept.finish(found, patched=COMMIT)


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
