"""Private moments on several workers: the same two clean sums as one process has, and noise once."""

import pytest
import torch

from dpfed.cluster.torchrun import take_part
from dpfed.cluster.work import Task
from dpfed.config import parse_config
from dpfed.progress import Silent
from dpfed.runs.pretraining import pretrain
from dpfed.training.coordinator import Coordinator
from tests.cluster.processes import Processes


def watch(rank, config, folder, alone=False):
    """Takes part in a run, and writes down the clean sums and the noisy ones."""
    seen, release = [], Coordinator._release

    def watched(self, step, total):
        clean = total.values.clone()
        noisy = release(self, step, total)
        seen.append((clean, noisy.clone()))
        return noisy

    Coordinator._release = watched
    try:
        pretrain(config, folder / "run") if alone else take_part(Task(folder / "run", config), Silent())
    finally:
        Coordinator._release = release
    torch.save(seen, folder / f"{rank}.pt")


@pytest.mark.slow
def test_two_workers_release_what_one_process_does(tiny_moments, tmp_path):
    tiny_moments["privacy"] = {"noise_multiplier": 2.0, "seed": 7}
    tiny_moments["evaluation"] = {"split": "none"}
    config, one, two = parse_config(tiny_moments), tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    watch(0, config, one, alone=True)
    with Processes(2, two, watch, config, two) as processes:
        assert processes.wait() == [0, 0], processes.text
    expected, found = (torch.load(folder / "0.pt") for folder in (one, two))
    layout = slice(0, 2 * 16), slice(2 * 16, None)
    torch.testing.assert_close(found[0][0], expected[0][0], rtol=1e-4, atol=1e-4)  # before any noise
    for place, (clean, noisy) in zip(layout, found, strict=True):
        others = torch.ones(len(clean), dtype=torch.bool)
        others[place] = False
        assert not clean[others].any() and clean[place].any()
        assert (noisy - clean).std().item() == pytest.approx(2.0, rel=0.2)
    assert torch.load(two / "1.pt") == []
