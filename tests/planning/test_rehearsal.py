"""A rehearsal has the private run's q, sigma, T and noise over signal; it makes no promise and writes a configuration."""

import json
import math
import tomllib

import numpy as np
import pytest
import torch

from dpfed.config import load_config, parse_config
from dpfed.errors import UserError
from dpfed.files.shipped import config_names
from dpfed.planning.proxy import Proxy, chosen, declared_plan
from dpfed.planning.rehearsal import RESULTS, Rehearsal, Rehearsed, ScaledUp, _best, rehearse
from dpfed.planning.simulated import SimulatedRun
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent

GIVEN = {"epsilon": 8.0, "batch": 120, "steps": 4}


@pytest.fixture
def config(tiny):
    tiny["privacy"] = dict(GIVEN)
    tiny["evaluation"] = {"tasks": ["retrieval"], "records": 50}
    return parse_config(tiny)


def imitation_of(config, plan, store, records):
    return SimulatedRun.of(config, plan, Proxy("store", store.path, 600), records, Silent())


def transport_of(imitation, plan, seed=1):
    groups = round(plan.groups * imitation.protected / plan.sampling.records)
    worker = imitation.worker(plan, Randomness.from_seed(seed), groups)
    return ScaledUp(worker, plan, groups), worker


@pytest.mark.long
def test_as_many_public_records_give_the_private_runs_sum(config, shapes):
    plan = declared_plan(config, None, Silent())
    imitation = imitation_of(config, plan, shapes, 600)
    transport, worker = transport_of(imitation, plan)
    private_worker = imitation.parts.learner.worker(Randomness.from_seed(1).for_ranks())
    for step in range(2):
        rehearsed, private = transport.aggregate(step), private_worker.bounded_sum(step)
        assert torch.equal(rehearsed.values, private.values)
        assert (rehearsed.groups, rehearsed.sensitivity) == (plan.groups, plan.sensitivity)


@pytest.mark.long
def test_fewer_public_records_have_the_private_noise_over_signal(config, shapes):
    """The sum is on average as long as that of all records, and the noise is the plan's, whatever the number."""
    plan = declared_plan(config, None, Silent())
    sums = {}
    for records in (600, 150):
        transport, _ = transport_of(imitation_of(config, plan, shapes, records), plan)
        sums[records] = torch.stack([transport.aggregate(step).values for step in range(16)]).double()
    means = {records: vectors[0::2].mean(0) @ vectors[1::2].mean(0) for records, vectors in sums.items()}
    assert (means[150] / means[600]).sqrt().item() == pytest.approx(1, abs=0.25)
    # Unscaled sums would be a quarter as long, and a plan of its own would have a quarter of the noise.


@pytest.mark.long
@pytest.mark.parametrize("records", [600, 150])
def test_noise_is_the_private_plans_for_any_public_records(config, shapes, tmp_path, records):
    plan = declared_plan(config, None, Silent())
    imitation = imitation_of(config, plan, shapes, records)
    coordinator = imitation.parts.learner.coordinator(Randomness.from_seed(1), Ledger.create(tmp_path / "ledger", plan))
    transport, _ = transport_of(imitation, plan)
    total = transport.aggregate(0)
    clean = total.numbers()
    noisy = coordinator.release(0, total)
    std = plan.noise.multiplier * 2 * plan.bounding.clip_norm
    assert (noisy - clean).std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * len(clean)))


def test_each_public_record_is_drawn_with_the_private_rate(config, shapes):
    plan = declared_plan(config, None, Silent())
    _, worker = transport_of(imitation_of(config, plan, shapes, 150), plan)
    drawn = [len(worker.draw(step).indices) for step in range(200)]
    rate = plan.sampling.batch / plan.sampling.records
    spread = math.sqrt(150 * rate * (1 - rate) / len(drawn))
    assert abs(np.mean(drawn) - 150 * rate) < 4 * spread


@pytest.mark.slow
def test_a_rehearsal_resumes_writes_its_choice_promises_nothing(config, public_store, shapes, tmp_path, monkeypatch):
    stand = chosen(str(shapes.path), config, declared_plan(config, None, Silent()))
    result = rehearse(config, stand, tmp_path, most=200)
    assert [set(one.changes) for one in result.tried[:3]] == [set(), *[{"optimizer.learning_rate"}] * 2]
    assert len(result.tried) == 7
    lengths = {one.changes.get("privacy.steps", 4): one.noise_multiplier for one in result.tried}
    assert lengths[2] < lengths[4] < lengths[8]  # every one keeps the same promise
    assert result.best in (result.tried[0], max(result.tried, key=lambda one: one.headline.trained))
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {RESULTS, "tiny.toml"}  # no card, no ledger, no model
    chosen_config = load_config(result.file)
    assert chosen_config == result.config and chosen_config.data == config.data
    assert chosen_config.privacy.epsilon == 8.0

    def trained(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr("dpfed.planning.rehearsal._trained", trained)
    lines = (tmp_path / RESULTS).read_text().splitlines()
    assert rehearse(config, stand, tmp_path, most=200).best == result.best
    (tmp_path / RESULTS).write_text("\n".join(lines) + "\n" + lines[0][:20])  # a crash cut a line short
    assert rehearse(config, stand, tmp_path, most=200).tried == result.tried
    (tmp_path / RESULTS).write_text("{}\n")
    with pytest.raises(UserError, match="rehearsal-damaged"):
        rehearse(config, stand, tmp_path, most=200)


def tried(name, value, off):
    common = {"name": "text_to_image_R@10", "split": "test", "protocol": "", "step": 4}
    figures = [{**common, "value": 0.1, "model": "untrained"}]
    figures += [{**common, "value": value, "model": "trained", "interval": [value - off, value + off]}]
    return Rehearsed(name, {"bounding.group_size": 2}, 1.0, 4, figures, 1.0)


def test_the_best_setting_beats_the_configuration_beyond_chance(config, tmp_path):
    first, chance, better = tried("as configured", 0.5, 0.1), tried("S = 2", 0.58, 0.1), tried("T = 8", 0.9, 0.1)
    assert _best([first, chance]) is first and _best([first, chance, better]) is better
    said = Rehearsal([first, chance], first, config, tmp_path, None).verdict
    assert said.startswith("No tried setting beats the configuration by more than chance, so the configuration is kept")


@pytest.mark.parametrize("name", config_names())
def test_the_written_configuration_is_short_and_means_the_same(name):
    config = load_config(name)
    text = config.dump(defaults=False)
    assert parse_config(tomllib.loads(text)) == config and len(text.splitlines()) < 60


@pytest.mark.long
def test_engines_are_timed_once_for_each_group_size(tiny, shapes, tmp_path, monkeypatch):
    tiny["privacy"], tiny["evaluation"] = dict(GIVEN), {"tasks": ["retrieval"], "records": 50}
    tiny["bounding"]["engine"] = "auto"
    timed, notes = [], []
    chosen = lambda model, batch, *_: timed.append(len(batch.views["image"]) / (len(batch.offsets) - 1)) or "loop"  # noqa: E731
    monkeypatch.setattr("dpfed.runs.build.choose_engine", chosen)
    progress = Silent()
    progress.note = notes.append
    monkeypatch.setattr("dpfed.planning.rehearsal._FACTORS", (2.0,))
    monkeypatch.setattr("dpfed.planning.rehearsal._others", lambda _: {"bounding.group_size": [2]})
    rehearse(parse_config(tiny), Proxy("store", shapes.path, 600), tmp_path / "out", most=200, progress=progress)
    assert [round(each) for each in timed] == [4, 2]  # records of a group
    counted = [note for note in notes if " of 3: " in note]
    assert counted[0] == "1 of 3: as configured" and "S = 2; about " in counted[2]


@pytest.mark.long
def test_public_contrast_is_rehearsed_as_well(tiny_public, shapes, tmp_path):
    tiny_public["privacy"] = dict(GIVEN)
    config = parse_config(tiny_public)
    plan = declared_plan(config, None, Silent())
    imitation = imitation_of(config, plan, shapes, 150)
    groups = plan.groups * 150 / plan.sampling.records
    worker = imitation.worker(plan, Randomness.from_seed(1), round(groups))
    total = ScaledUp(worker, plan, groups).aggregate(0)
    assert torch.equal(total.values, worker.bounded_sum(0).values * 4) and total.sensitivity == 1.0
    assert json.dumps(plan.as_dict()) and plan.sampling.records == 600
