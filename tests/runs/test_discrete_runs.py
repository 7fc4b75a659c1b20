"""Runs with discrete noise: neighbours on the grid, the same bits after an interruption, papers that say which noise it was."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.report.card import table_rows
from dpfed.runs.build import build
from dpfed.runs.preflight import known_plan
from dpfed.runs.pretraining import pretrain, resume
from dpfed.training.coordinator import Coordinator
from tests.killed import killed
from tests.training.records_of_worker import keep_only


def weights(run: RunDirectory) -> dict:
    return load_file(run.model / "model.safetensors")


def same(one, other) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "world_size, changes", [(1, {}), (1, {"max_group_size": 3, "microbatch": 7}), (3, {"clip_norm": 1e-5})]
)
def test_neighbours_integers_are_as_close_as_the_plan_says(discrete, world_size, changes):
    """Clipped to 1e-5, every group is as long as it may be."""
    discrete["bounding"] |= changes
    whole = build(parse_config(discrete), Randomness.from_seed(5))
    parts = [whole.learner.replace(rank=rank, world_size=world_size) for rank in range(world_size)]

    def workers(gone: int):
        for one in parts:
            worker = one.worker(Randomness.from_seed(5))
            indices = np.asarray(one.partition.indices)
            keep_only(worker, indices[indices != gone], whole.store.keys)
            yield worker

    def integers(gone: int = -1) -> np.ndarray:
        first, *others = (worker.bounded_sum(0) for worker in workers(gone))
        return sum(others, first).values.numpy()

    everybody = integers()
    drawn = np.concatenate([worker.draw(0).indices for worker in workers(-1)])
    moved = [math.sqrt(sum(int(step) ** 2 for step in everybody - integers(gone))) for gone in drawn[::15]]
    grid = whole.plan.grid_of()
    assert 0 < max(moved) <= 2 * grid.radius
    assert 2 * grid.radius * whole.plan.noise.multiplier <= 2**31 / grid.finer  # the noise, in the same steps
    if "clip_norm" in changes:
        assert max(moved) > 0.3 * 2 * grid.radius


@pytest.mark.long
def test_a_resumed_run_comes_to_the_same_bits(discrete, tmp_path):
    discrete["privacy"] |= {"seed": 11, "steps": 4}
    discrete["evaluation"] = {"split": "none"}
    config = parse_config(discrete)
    expected = pretrain(config, tmp_path / "undisturbed")
    with killed(Coordinator, "apply", 3, before=False):  # its release is kept, and no checkpoint has taken it in
        pretrain(config, tmp_path / "run")
    again = resume(tmp_path / "run")
    assert same(weights(again), weights(expected))
    assert Ledger.open(again.ledger).charged == Ledger.open(expected.ledger).charged == 4
    floating = parse_config({**discrete, "privacy": {**discrete["privacy"], "noise": "gaussian"}})
    assert not same(weights(pretrain(floating, tmp_path / "floating")), weights(expected))


@pytest.mark.long
def test_the_papers_say_which_noise_it_was(discrete, tmp_path):
    discrete["privacy"]["steps"], discrete["evaluation"] = 1, {"split": "none"}
    kinds = {}
    for kind in ("discrete", "gaussian"):
        discrete["privacy"]["noise"] = kind
        run = pretrain(parse_config(discrete), tmp_path / kind)
        kinds[kind] = run.card.read_text(), run.report.read_text()
    card, report = kinds["discrete"]
    said = table_rows(card)["Noise"]
    assert said.startswith("discrete Gaussian, drawn exactly, in steps of 9.31e-10")
    assert "discrete Gaussian" in report
    assert "The last bits of the noise" not in card and "AES-256" in card
    card, report = kinds["gaussian"]
    assert table_rows(card)["Noise"] == "Gaussian, in floating point" and "The last bits of the noise" in card
    assert "discrete Gaussian" not in report


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        ("bounding", {"engine": "layerwise"}, "run-discrete-layerwise"),
        ("training", {"device": "mps"}, "run-discrete-mps"),
        ("bounding", {"method": "logit", "engine": "auto"}, "which method 'logit' does not have"),
        ("privacy", {"noise_multiplier": 2000.0}, "at most 1000"),
    ],
)
def test_what_is_not_proven_is_refused_before_a_record_is_read(discrete, section, changes, said):
    discrete[section] |= changes
    if "method" in changes:
        del discrete["bounding"]["group_size"], discrete["bounding"]["engine"]
    with pytest.raises(UserError, match=said):
        known_plan(parse_config(discrete))


def test_the_engine_that_is_left_open_is_the_loop(discrete):
    del discrete["bounding"]["engine"]
    assert build(parse_config(discrete)).config.bounding.engine == "loop"


@pytest.mark.parametrize("method", ["batch", "public"])
def test_other_proven_methods_take_it(discrete, tiny_public, method, tmp_path):
    discrete["privacy"]["steps"], discrete["evaluation"] = 1, {"split": "none"}
    tree = {**discrete, "bounding": {"method": "batch"}}
    if method == "public":
        tree |= {"bounding": tiny_public["bounding"], "public": tiny_public["public"]}
    run = pretrain(parse_config(tree), tmp_path / "run")
    assert table_rows(run.card.read_text())["Noise"].startswith("discrete")
