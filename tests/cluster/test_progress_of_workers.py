"""Private progress in a cluster: workers' figures are added up with their sums."""

import pytest
import torch

from dpfed.artifacts.view import RunView
from dpfed.cluster.torchrun import take_part
from dpfed.cluster.work import Task
from dpfed.config import parse_config
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.runs.assembly import assemble
from dpfed.runs.resolution import resolve
from dpfed.training.coordinator import Coordinator
from dpfed.training.trainer import InProcess
from dpfed.training.worker import Worker
from tests.cluster.processes import Processes


def watch(rank, config, folder):
    """Takes part in a run, and writes down the thresholds that this worker was asked about, and each clean sum."""
    real, sums, release, asked = Worker.bounded_sum, [], Coordinator._release, []

    def bounded_sum(self, step):
        asked.append(self.threshold)
        return real(self, step)

    def released(self, step, total):
        sums.append(total.values.clone())
        return release(self, step, total)

    Worker.bounded_sum, Coordinator._release = bounded_sum, released
    take_part(Task(folder / "run", config), Silent())
    torch.save((asked, sums), folder / f"{rank}.pt")


@pytest.mark.slow
def test_workers_figures_are_those_of_one_process(tiny, tmp_path):
    tiny["bounding"] = {"group_size": 4, "microbatch": 32, "clipping": "adaptive", "engine": "loop"}
    tiny |= {"diagnostics": "private", "progress": {"share": 0.2, "phase": 2}, "evaluation": {"split": "none"}}
    tiny["privacy"] |= {"seed": 11, "steps": 4}
    config = parse_config(tiny)
    with Processes(2, tmp_path, watch, config, tmp_path) as processes:
        assert processes.wait() == [0, 0], processes.text
    (asked, sums), (same, none) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert asked == same and none == [] and len(set(asked)) == 4
    phases = RunView.read(tmp_path / "run").phases
    assert [phase.last for phase in phases] == [2, 4]
    # The first step's, of two workers in this process.
    randomness = Randomness.from_seed(11)
    parts = [assemble(resolve(config), randomness, owner=owner, owners=2) for owner in range(2)]
    total = InProcess([one.worker(randomness.for_owners(), model=parts[0].model) for one in parts]).collect(0).values
    plan: PrivacyPlan = parts[0].plan
    assert total.numel() == sums[0].numel() == TrainableVector(parts[0].model).numel + plan.statistics_count
    assert torch.allclose(sums[0], total, atol=2e-4 * plan.bounding.clip_norm)
    assert torch.allclose(sums[0][-2:], total[-2:], atol=1e-4 * plan.statistics.unit)
