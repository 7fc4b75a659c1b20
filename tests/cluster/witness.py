"""What a process of a cluster holds, is asked about and releases in each step, written down for a test."""

import torch

from dpfed.cluster.torchrun import take_part
from dpfed.cluster.work import Task
from dpfed.progress import Silent
from dpfed.runs.pretraining import pretrain
from dpfed.training.coordinator import Coordinator
from dpfed.training.worker import Worker
from tests.cluster.processes import Processes


def witness(rank, config, folder, alone=False):
    """Takes part in a run; the weights and the threshold of each step, and each sum before and after the noise."""
    seen = {"held": [], "asked": [], "sums": []}
    bounded_sum, release = Worker.bounded_sum, Coordinator.release

    def watched_sum(self, step):
        seen["held"].append({name: value.clone() for name, value in self._model.state_dict().items()})
        seen["asked"].append(self.threshold)
        return bounded_sum(self, step)

    def watched_release(self, step, total):
        clean = total.values.clone()
        noisy = release(self, step, total)
        seen["sums"].append((clean, noisy.clone()))
        return noisy

    Worker.bounded_sum, Coordinator.release = watched_sum, watched_release
    try:
        pretrain(config, folder / "run") if alone else take_part(Task(folder / "run", config), Silent())
    finally:
        Worker.bounded_sum, Coordinator.release = bounded_sum, release
    torch.save(seen, folder / f"{rank}.pt")


def seen_by_two(config, folder, task=witness):
    """What each of two workers wrote down of a run in ``folder / "run"``."""
    folder.mkdir(exist_ok=True)
    with Processes(2, folder, task, config, folder) as processes:
        assert processes.wait() == [0, 0], processes.text
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]
