"""Every kind of run is one mechanism on two workers, too: the sums and the weights of one process, and noise once."""

import pytest
import torch
from safetensors.torch import load_file

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.view import read_view
from dpfed.building.model import facts_of
from dpfed.config import parse_config
from dpfed.models import starting
from dpfed.models.building import build_model
from dpfed.models.folder import save_encoder
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.noise import KeyedNoise
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from dpfed.runs.resolution import resolve_defaults
from dpfed.training.transport import InProcess
from tests.cluster.witness import seen_by_two, witness


@pytest.mark.slow
def test_discrete_noise_is_that_of_one_process_once(discrete, tmp_path):
    discrete["privacy"] |= {"seed": 11, "steps": 2}
    discrete["evaluation"] = {"split": "none"}
    first, _ = seen_by_two(parse_config(discrete), tmp_path)
    plan = Ledger.open(RunDirectory.open(tmp_path / "run").ledger).plan
    assert plan.noise.kind == "discrete" and len(first["sums"]) == 2
    for step, (clean, noisy) in enumerate(first["sums"]):
        keyed = KeyedNoise(plan.noise_of(), Randomness.from_seed(11), "noise", plan.fingerprint)
        assert torch.equal(noisy, keyed.noisy(clean, step)) and clean.any()
    witness(0, parse_config(discrete), tmp_path / "alone", alone=True)
    for mine, theirs in zip(torch.load(tmp_path / "alone" / "0.pt")["sums"], first["sums"], strict=True):
        assert all(map(torch.equal, mine, theirs))


@pytest.mark.slow
def test_moments_are_those_of_one_process(tiny_moments, tmp_path):
    tiny_moments["privacy"] = {"noise_multiplier": 2.0, "seed": 7}
    tiny_moments["evaluation"] = {"split": "none"}
    config = parse_config(tiny_moments)
    witness(0, config, tmp_path, alone=True)
    expected = torch.load(tmp_path / "0.pt")["sums"]
    first, second = seen_by_two(config, tmp_path / "two")
    assert torch.equal(first["sums"][0][0], expected[0][0])  # before any noise
    unit = Ledger.open(RunDirectory.open(tmp_path / "run").ledger).plan.grid_of().unit
    for place, (clean, noisy) in zip((slice(0, 2 * 16), slice(2 * 16, None)), first["sums"], strict=True):
        others = torch.ones(len(clean), dtype=torch.bool)
        others[place] = False
        assert not clean[others].any() and clean[place].any()
        assert (noisy - unit * clean).std().item() == pytest.approx(2.0, rel=0.2)
    assert second["sums"] == []


@pytest.mark.slow
def test_private_figures_are_added_up_with_the_sums(tiny, tmp_path):
    tiny["bounding"] = {"group_size": 4, "microbatch": 32, "clipping": "adaptive", "engine": "loop"}
    tiny |= {"diagnostics": "private", "progress": {"share": 0.2, "phase": 2}, "evaluation": {"split": "none"}}
    tiny["privacy"] |= {"seed": 11, "steps": 4}
    config = parse_config(tiny)
    first, second = seen_by_two(config, tmp_path)
    assert first["asked"] == second["asked"] and second["sums"] == [] and len(set(first["asked"])) == 4
    assert [phase.last for phase in read_view(tmp_path / "run").windows] == [2, 4]
    # The first step's, of two workers in this process.
    randomness, (clean, _) = Randomness.from_seed(11), first["sums"][0]
    parts = [build(config, randomness, rank=rank, world_size=2) for rank in range(2)]
    total = InProcess([one.worker(randomness.for_ranks(), model=parts[0].model) for one in parts]).aggregate(0).values
    plan = parts[0].plan
    assert total.numel() == clean.numel() == TrainableVector(parts[0].model).numel + plan.statistics_count
    assert torch.equal(clean, total)


def _only_the_first_has_the_weights(rank, config, folder):
    if rank:
        starting.StartingWeights.load_into = None
    witness(rank, config, folder)


@pytest.mark.slow
def test_all_workers_train_from_the_starting_weights(tiny, tmp_path):
    tiny["privacy"]["steps"] = 1
    config = parse_config({**tiny, "evaluation": {"split": "none"}})
    torch.manual_seed(3)
    save_encoder(tmp_path / "start", build_model(config.model, config.objective, size=16), facts_of(resolve_defaults(config)))
    config = config.model_copy(update={"model": config.model.model_copy(update={"start": str(tmp_path / "start")})})
    start = load_file(tmp_path / "start" / "model.safetensors")
    for seen in seen_by_two(config, tmp_path / "out", _only_the_first_has_the_weights):
        assert all(torch.equal(seen["held"][0][name], value) for name, value in start.items())
