"""Worker 0 reads the starting weights, and all workers train from them."""

import torch
from safetensors.torch import load_file

from dpfed.cluster.torchrun import take_part
from dpfed.cluster.work import Task
from dpfed.config import parse_config
from dpfed.models import starting
from dpfed.models.building import build_model
from dpfed.models.folder import save_encoder
from dpfed.progress import Silent
from dpfed.runs.resolution import resolve
from dpfed.training.worker import Worker
from tests.cluster.processes import Processes


def watch(rank, config, folder):
    """Carries out a run, and writes down what this process held in its first step."""
    bounded_sum, held = Worker.bounded_sum, []

    def watched_sum(self, step):
        held.append({name: value.clone() for name, value in self._model.state_dict().items()})
        return bounded_sum(self, step)

    Worker.bounded_sum = watched_sum
    if rank:
        starting.StartingWeights.load_into = None
    take_part(Task(folder / "run", config), Silent())
    torch.save(held[0], folder / f"{rank}.pt")


def test_all_workers_train_from_the_starting_weights(tiny, tmp_path):
    config = parse_config({**tiny, "evaluation": {"split": "none"}})
    torch.manual_seed(3)
    save_encoder(tmp_path / "start", build_model(config.model, config.objective, size=16), resolve(config))
    config = config.model_copy(update={"model": config.model.model_copy(update={"start": str(tmp_path / "start")})})
    with Processes(2, tmp_path / "out", watch, config, tmp_path) as processes:
        assert processes.wait() == [0, 0], processes.text
    start = load_file(tmp_path / "start" / "model.safetensors")
    for rank in (0, 1):
        held = torch.load(tmp_path / f"{rank}.pt")
        assert all(torch.equal(held[name], value) for name, value in start.items())
