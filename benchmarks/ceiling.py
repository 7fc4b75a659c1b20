"""What a second core is worth here: two processes that share nothing but the machine, over one of them alone.

No transport can give two workers more than this. Both processes clip the gradients of groups like the quickstart's, one thread
each; one alone and both at once take turns, and the slower of the two counts, as in a step.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import torch

from benchmarks.record import write_result
from dpfed.bounding.engines import GroupBatch, LoopEngine
from dpfed.config import load_config
from dpfed.models.building import build_model

ROUNDS = 12
_RECORDS = 512


def compute() -> None:
    """A process: for each line that comes in, clips the gradients of some groups, and prints the seconds that it took."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = load_config("configs/quickstart.toml")
    model = build_model(config.model, config.objective)
    size, words = config.model.vocabulary, config.model.context
    views = {"image": torch.randn(_RECORDS, 1, 3, 32, 32), "text": torch.randint(1, size, (_RECORDS, 1, words))}
    batch = GroupBatch(views, list(range(0, _RECORDS + 1, config.bounding.group_size)))
    engine = LoopEngine(model)
    into = engine.zeros()
    engine.add_clipped(batch, 1.0, into)
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        engine.add_clipped(batch, 1.0, into)
        print(time.perf_counter() - started, flush=True)


def main() -> None:
    """Measures, prints and writes ``benchmarks/results/ceiling.json``."""
    command = [sys.executable, "-m", "benchmarks.ceiling", "compute"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        process.stdout.readline()

    def together(which: list[subprocess.Popen]) -> float:
        for process in which:
            process.stdin.write("go\n")
        return max(float(process.stdout.readline()) for process in which)

    ratios = []
    for number in range(ROUNDS):
        alone = together([processes[number % 2]])
        ratios.append(2 * alone / together(processes))
    for process in processes:
        process.stdin.close()
        process.wait()
    low, middle, high = (round(value, 3) for value in statistics.quantiles(ratios, n=4))
    print(f"two processes do {middle} times the work of one (quartiles {low} to {high})")
    print(write_result("ceiling", {"ratio": middle, "quartiles": [low, middle, high], "rounds": ROUNDS}, seeds=[0]))


if __name__ == "__main__":
    compute() if sys.argv[1:] == ["compute"] else main()
