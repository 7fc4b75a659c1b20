"""The reference without privacy: the same steps, nothing clipped, no noise, and no promise anywhere."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpfed.artifacts.view import read_view
from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.bounding.clipping import clip_factors
from dpfed.building.plan import plan_of
from dpfed.config import BoundingConfig, Config, OptimizerConfig, PrivacyConfig, parse_config
from dpfed.console import terminal
from dpfed.data.sampling import draw_step
from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.report.html import write_report
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain, resume
from dpfed.training.checkpoint import Checkpoints
from dpfed.training.coordinator import Coordinator
from tests.killed import killed

NONE = BoundingConfig(method="none", group_size=4)


@pytest.fixture
def without(tiny):
    tiny["bounding"]["method"] = "none"
    del tiny["privacy"]["epsilon"]
    return tiny


def strict(text):
    """JSON as the standard has it."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not a JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.long
def test_the_plan_promises_nothing():
    plan = plan_of(1000, Config(privacy=PrivacyConfig(batch=100, steps=7), bounding=NONE))
    assert (plan.noise.multiplier, plan.noise_std) == (0, 0)
    assert plan.sensitivity == plan.bounding.bound == plan.epsilon() == plan.epsilon(1, "rdp") == math.inf
    private = plan_of(
        1000, Config(privacy=PrivacyConfig(batch=100, steps=7, epsilon=8.0), bounding=BoundingConfig(group_size=4))
    )
    assert private.sampling.rate == plan.sampling.rate and private.groups == plan.groups
    assert private.fingerprint != plan.fingerprint
    assert (private.bounding.bound, private.sensitivity) == (1.0, 2.0)


@pytest.mark.parametrize("asked", [{"epsilon": 8.0}, {"noise_multiplier": 1.0}, {"noise_multiplier": 0.0}])
def test_a_promise_without_privacy_is_refused(asked):
    with pytest.raises(UserError, match="has no effect with bounding.method = 'none'"):
        Config(privacy=PrivacyConfig(batch=100, **asked), bounding=NONE)
    unchecked = Config.unchecked(privacy=PrivacyConfig(batch=100, **asked), bounding=NONE)
    with pytest.raises(UserError, match="without privacy, so leave privacy.epsilon"):
        plan_of(1000, unchecked)


def test_gradients_keep_their_length_unless_they_are_not_finite():
    norms = torch.tensor([0.0, 1e-30, 1.0, 1e30, math.inf, math.nan], dtype=torch.float64)
    assert clip_factors(norms, math.inf).tolist() == [1, 1, 1, 1, 0, 0]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["loop", "layerwise"])
def test_the_sum_is_that_of_the_plain_gradients(without, engine):
    without["bounding"]["engine"] = engine
    parts, randomness = build(parse_config(without), Randomness.from_seed(5)), Randomness.from_seed(5)
    worker = parts.learner.worker(randomness)
    total = worker.bounded_sum(0)
    rows = parts.store.split("train")
    draw = draw_step(parts.plan, randomness, 0, rows, parts.store.keys[rows], parts.plan.groups)
    parts.model.train()
    losses = []
    for group in range(len(draw)):
        members = draw.members(group)
        embeddings = parts.model(worker.views(members, randomness, 0, torch.device("cpu")))
        present = torch.ones(len(members), dtype=torch.bool)
        losses.append(parts.config.objective.group_loss()(embeddings, present, parts.model.temperature, None))
    trainable = [parameter for parameter in parts.model.parameters() if parameter.requires_grad]
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(sum(losses), trainable)])
    assert torch.allclose(total.values, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    assert expected.norm() > 2 * parts.plan.bounding.clip_norm * parts.plan.groups  # clipping would have shown


def test_the_update_is_the_sum_over_k_and_nothing_else(tmp_path):
    plan = PrivacyPlan.of(1000, 64, 4, 0.5, 20, 0.0, 1e-5, method_name="none")
    model = torch.nn.Linear(1000, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    ledger = Ledger.create(tmp_path / "ledger.jsonl", plan)
    config = OptimizerConfig(name="sgd", learning_rate=1.0, momentum=0.0)
    signal = torch.linspace(-100, 100, 1000)
    coordinator = Coordinator(plan, model, config, Randomness.from_seed(0), ledger)
    coordinator.apply(0, BoundedSum(signal.clone(), plan.sensitivity, plan.groups))
    assert torch.equal(model.weight.detach()[0], -signal / plan.groups)
    again = Ledger.open(ledger.path)
    assert (again.charged, again.epsilon, again.plan) == (1, math.inf, plan)
    for line in ledger.path.read_text().splitlines():
        strict(line)


@pytest.mark.long
def test_a_run_says_everywhere_that_there_is_no_guarantee(without, tmp_path, capsys, monkeypatch):
    run = pretrain(parse_config(without), tmp_path / "none")
    card = run.card.read_text()
    assert "no privacy guarantee holds" in card.splitlines()[0] and "trained without privacy" in card
    assert "differentially private" not in card and "Covered by the guarantee" not in card
    privacy = strict(run.results.read_text())["privacy"]
    assert privacy["epsilon"] is privacy["sensitivity"] is privacy["epsilon_rdp"] is None
    assert (privacy["method"], privacy["guarantee"], privacy["steps_charged"]) == ("none", False, 6)
    for file in (run.metrics, run.ledger):
        for line in file.read_text().splitlines():
            strict(line)
    monkeypatch.setattr(terminal, "console", terminal.Console(width=120))
    terminal.show_run(run)
    said = capsys.readouterr().out
    assert "no guarantee" in said and "trained without privacy" in said
    assert "No privacy guarantee holds" in run.report.read_text()

    without["bounding"]["method"], without["privacy"]["epsilon"] = "group", 8.0
    private = pretrain(parse_config(without | {"name": "private"}), tmp_path / "private")
    write_report(tmp_path / "both.html", [read_view(run.path), read_view(private.path)])
    html = (tmp_path / "both.html").read_text()
    assert "no guarantee" in html and "(8.00," in html
    assert read_view(run.path).epsilon == math.inf


@pytest.mark.long
def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(without, tmp_path):
    without["privacy"]["seed"] = 3
    config = parse_config(without)
    whole = pretrain(config, tmp_path / "whole")
    with killed(Checkpoints, "save", 3, error=KeyboardInterrupt):  # of step 4
        pretrain(config, tmp_path / "cut")
    cut = resume(tmp_path / "cut")
    weights = [load_file(run.model / "model.safetensors") for run in (whole, cut)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert Ledger.open(cut.ledger).charged == 6


def test_an_unprivate_ledger_cannot_go_on_as_a_private_one(without, tmp_path):
    parts = build(parse_config(without), Randomness.from_seed(0))
    ledger = Ledger.create(tmp_path / "ledger.jsonl", parts.plan)
    private = parts.plan.replace(method_name="group", noise_multiplier=1.0)
    with pytest.raises(UserError, match="another plan"):
        Coordinator(private, parts.model, OptimizerConfig(), Randomness.from_seed(0), ledger)
    assert np.isinf(ledger.plan.sensitivity)
