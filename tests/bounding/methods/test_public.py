"""Public contrast: its loss, its engines, and what it refuses."""

import pytest
import torch

from dpfed.bounding.engines import ENGINES, GroupBatch, build_engine
from dpfed.building.plan import plan_of
from dpfed.config import ModelConfig, ObjectiveConfig, parse_config
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.centres import add_centres
from dpfed.models.parameters import TrainableVector
from dpfed.objectives import OBJECTIVES
from dpfed.objectives.centring import centred
from tests.objectives.test_two_view_losses import barlow_twins
from tests.sparing import sparing

M = 3
LOSSES = [name for name, loss in OBJECTIVES.items() if not loss.reads_labels]  # public records have no classes
PUBLIC = {"source": "shapes"}
MODELS = {
    "images": ModelConfig(width=8, embedding=8, head_hidden=16),
    "pairs": ModelConfig(kind="image-text", width=8, text_width=16, text_layers=1, vocabulary=64, embedding=8, context=6),
}


def config(**sections):
    tree = {"bounding": {"method": "public"}, "public": PUBLIC, "privacy": {"epsilon": 1.0, "batch": 32, "steps": 2}}
    return parse_config(tree | sections)


def added(objective, z, count, tau, bias):
    """The definition, pair by pair: what the first `count` records of a group add, with one text or two views each."""
    first, second = (z["image"][:, 0], z["text"][:, 0]) if "text" in z else (z["image"][:, 0], z["image"][:, 1])
    size, total = len(first), 0
    if objective == "barlow_twins":  # the formula of the statistics, written out, with these records and without them
        return barlow_twins(z, [True] * size) - barlow_twins(z, [row >= count for row in range(size)])
    if objective == "infonce":
        for i in range(count):
            for anchors, others in ((first, second), (second, first)):
                logits = torch.stack([anchors[i] @ others[j] / tau for j in range(size)])
                total = total - (logits[i] - torch.logsumexp(logits, 0))
        return total
    for i in range(size):
        for j in range(size):
            if min(i, j) < count:  # the pair has a record of its own
                sign = 1 if i == j else -1
                total = total - torch.nn.functional.logsigmoid(sign * (first[i] @ second[j] / tau + bias))
    return total


def engine_of(name, model, loss):
    """Whether groups are computed alike is asked elsewhere."""
    further = {"if_unlike": "go on"} if name == "layerwise" else {}
    return build_engine(name, model, "fp32", loss, 1 + M, **further)


def batch_of(kind, counts):
    """Groups of so many own records each, with M public ones behind them."""
    offsets = [0]
    for count in counts:
        offsets.append(offsets[-1] + count + M)
    generator = torch.Generator().manual_seed(3)
    views = {"image": torch.randn(offsets[-1], 1 if kind == "pairs" else 2, 3, 16, 16, generator=generator)}
    if kind == "pairs":
        views["text"] = torch.randint(1, 64, (offsets[-1], 1, 6), generator=generator)
    return GroupBatch(views, offsets)


@pytest.mark.long
@pytest.mark.parametrize("counts", [(1, 1, 1, 1), (1, 3, 2)], ids=["records", "units"])
@pytest.mark.parametrize("kind", sparing(MODELS, "pairs"))
@pytest.mark.parametrize("objective", LOSSES)
def test_every_engine_clips_the_gradient_of_what_a_record_adds(objective, kind, counts):
    own_options = {"infonce": {"learn_temperature": True}, "siglip": {"learn_temperature": True, "bias": -1.0}}
    wanted = ObjectiveConfig(name=objective, **own_options.get(objective, {}))
    model, batch, clip_norm = build_model(MODELS[kind], wanted), batch_of(kind, counts), 0.5
    expected, norms = 0, []
    for group, count in enumerate(counts):
        first, end = batch.offsets[group : group + 2]
        z = model({name: view[first:end] for name, view in batch.views.items()})
        loss = added(objective, z, count, model.temperature, model.bias)
        gradients = torch.autograd.grad(loss, TrainableVector(model).parameters)
        flat = torch.cat([gradient.flatten() for gradient in gradients]).double()
        norms.append(flat.norm().item())
        expected = expected + flat * min(1.0, clip_norm / norms[-1])
    assert max(norms) > clip_norm
    for name in ENGINES:
        into = TrainableVector(model).zeros()
        engine_of(name, model, wanted.group_loss(M)).add_clipped(batch, clip_norm, into)
        assert (into - expected).norm() <= 1e-4 * expected.norm(), name


@pytest.mark.parametrize("objective", LOSSES)
def test_public_records_carry_gradients_but_add_no_terms(objective):
    generator = torch.Generator().manual_seed(1)
    z = torch.nn.functional.normalize(torch.randn(1 + M, 2, 8, generator=generator), dim=-1).requires_grad_()
    present, tau, bias = torch.ones(1 + M, dtype=torch.bool), torch.tensor(0.1), torch.tensor(-1.0)
    wanted = ObjectiveConfig(name=objective)
    loss = wanted.group_loss(M)({"image": z}, present, tau, bias)
    (slope,) = torch.autograd.grad(loss, z)
    assert all(slope[row].norm() > 0 for row in range(1 + M))
    if OBJECTIVES[objective].own_terms:
        assert loss < wanted.group_loss()({"image": z}, present, tau, bias)
    # Padding behind the group changes nothing, whatever it holds.
    padded = torch.cat([z, torch.randn(2, 2, 8, generator=generator)])
    present = torch.arange(3 + M) < 1 + M
    assert torch.allclose(wanted.group_loss(M)({"image": padded}, present, tau, bias), loss, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("objective", ["infonce", "barlow_twins"])
@pytest.mark.parametrize("kind", list(MODELS))
def test_every_engine_clips_the_gradient_in_the_centres_too(objective, kind):
    wanted, weight, clip_norm = ObjectiveConfig(name=objective), 0.3, 0.5
    model, batch = build_model(MODELS[kind], wanted), batch_of(kind, (1, 3, 2))
    add_centres(model, MODELS[kind])
    torch.nn.init.normal_(model.centres.table.weight, std=0.1)
    vector, expected = TrainableVector(model), 0
    for group, count in enumerate((1, 3, 2)):
        first, end = batch.offsets[group : group + 2]
        z = model({name: view[first:end] for name, view in batch.views.items()})
        mask = torch.arange(end - first) < count
        centres = model.centres.table.weight.expand(end - first, -1)
        moved, distance = centred(
            z, centres, mask, torch.ones(end - first, dtype=torch.bool), OBJECTIVES[objective].unit_length
        )
        loss = added(objective, moved, count, model.temperature, model.bias) + weight * distance
        flat = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, vector.parameters)]).double()
        expected = expected + flat * min(1.0, clip_norm / flat.norm().item())
    assert expected[-model.centres.table.weight.numel() :].norm() > 0
    for name in ENGINES:
        into = vector.zeros()
        engine_of(name, model, wanted.group_loss(M, weight)).add_clipped(batch, clip_norm, into)
        assert (into - expected).norm() <= 1e-4 * expected.norm(), name


def test_the_plan_has_sensitivity_c_and_a_group_per_record():
    plan = plan_of(1000, config(bounding={"method": "public", "clip_norm": 0.7}))
    assert (plan.sensitivity, plan.groups, plan.divisor, plan.bounding.group_size) == (0.7, 32, 32, 1)
    assert plan.noise_std == pytest.approx(0.7 * plan.noise.multiplier) and plan.bounding.options == {"public_records": 3}
    assert plan_of(1000, config(public={**PUBLIC, "records": 5})).bounding.options == {"public_records": 5}
    group = plan_of(1000, config(bounding={"method": "group", "clip_norm": 0.7}, public={}))
    assert plan.noise.multiplier == group.noise.multiplier and plan.noise_std == group.noise_std / 2


def test_a_missing_path_is_refused_before_any_record_is_read():
    with pytest.raises(UserError, match="bounding-public-path"):
        plan_of(1000, config(public={}))
