"""How far one record moves the sums of the real engines that contrast the whole batch, against what the methods state."""

import math

import pytest
import torch

from dpfed.baselines.whole_batch.pair_engines import LogitEngine, SampleEngine
from dpfed.baselines.whole_batch.pair_options import contrastive_change, contrastive_change_below_cap, spread_out_change
from dpfed.bounding.engines.gradient_cache import BatchEngine
from dpfed.building.plan import plan_of
from dpfed.config import parse_config
from dpfed.objectives.infonce import group_loss
from dpfed.privacy.method import method_named
from tests.baselines.whole_batch.angle_model import AngleModel, batch_of, intruder, moving, newcomer, staying

CAP, CLIP = 6, 0.5


def plan(method, temperature=1.0, **options):
    tree = {
        "bounding": {"method": method, "max_batch": CAP, "clip_norm": CLIP, "options": options},
        "privacy": {"batch": 4, "noise_multiplier": 1.0},
        "objective": {"temperature": temperature},
    }
    return plan_of(100, parse_config(tree))


def build(method, temperature=1.0, norms="exact", **options):
    model = AngleModel(temperature)
    if method == "batch":
        return BatchEngine(model, "fp32", group_loss, microbatch=4)
    return {"logit": LogitEngine, "sample": SampleEngine}[method](model, CAP, norms, **options)


def moved(engine, before, after):
    sums = []
    for records in (before, after):
        into = engine.zeros()
        engine.add_clipped(batch_of(records), CLIP, into)
        sums.append(into.double())
    return (sums[0] - sums[1]).norm().item()


def test_the_adversary_reaches_every_sensitivity_and_no_more():
    stay = [staying()] * (CAP - 1)
    for method, options in (("batch", {}), ("sample", {}), ("logit", {}), ("logit", {"one_sided": True})):
        for temperature in (0.2, 1.0):
            sensitivity = plan(method, temperature, **options).sensitivity
            change = moved(build(method, temperature, **options), [*stay, intruder(1)], [*stay, intruder(-1)])
            assert 0.99 * sensitivity < change <= sensitivity * (1 + 1e-6), (method, options, temperature)


def test_the_adversary_exceeds_the_logit_dp_papers_constant():
    stay = [moving()] * (CAP - 1)
    change = moved(build("logit", one_sided=True), stay, [*stay, newcomer()]) / CLIP
    assert change > 1.03 * 2 * (1 + (CAP - 2) * math.e**2 / (math.e**2 + CAP - 1))
    assert 0.99 < change / contrastive_change_below_cap(CAP, 1.0) <= 1 + 1e-6
    pair = moved(build("logit", one_sided=True), [moving()], [moving(), newcomer()]) / CLIP
    assert pair > 1.7 * 2 and 0.99 < pair / contrastive_change_below_cap(2, 1.0) <= 1 + 1e-6


OPTIONS = [("sample", {}), ("logit", {}), ("logit", {"one_sided": True}), ("logit", {"spread_out": 2.0})]


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "options", "norms"),
    [("batch", {}, "exact"), *((*one, norms) for one in OPTIONS for norms in ("exact", "bound"))],
    ids=str,
)
def test_no_random_neighbour_exceeds_the_sensitivity(method, options, norms):
    engine = build(method, 0.5, norms, **options)
    sensitivity = plan(method, 0.5, **options).sensitivity
    generator = torch.Generator().manual_seed(2)
    for trial in range(2 * CAP):
        count = trial % CAP
        records = torch.rand(count + 2, 2, 2, generator=generator)
        records[..., 0] *= 2 * torch.pi
        records[..., 1] = 10 ** (4 * records[..., 1]) * (2 * torch.rand(count + 2, 2, generator=generator) - 1)
        assert moved(engine, records[:count], records[: count + 1]) <= sensitivity * (1 + 1e-6)  # one more
        swap = [*range(count), count + 1]
        assert moved(engine, records[: count + 1], records[swap]) <= sensitivity * (1 + 1e-6)  # one in another's place


def test_the_plan_takes_the_constants_of_its_method():
    assert plan("batch").sensitivity == 2 * CLIP and plan("batch").divisor == 1
    assert plan("sample").sensitivity == 2 * CAP * CLIP and plan("sample").divisor == 4
    logit = plan("logit", 0.3, spread_out=0.5)
    assert logit.sensitivity == pytest.approx(2 * CLIP * (contrastive_change(CAP, 0.3) + 0.5 * spread_out_change()))
    assert logit.divisor == 4
    assert all(method_named(name).whole_batch and method_named(name).sound for name in ("batch", "sample", "logit"))


@pytest.mark.parametrize("method", ["sample", "logit"])
@pytest.mark.parametrize("norms", ["exact", "bound"])
def test_a_record_without_finite_derivatives_changes_nothing(method, norms):
    records = torch.rand(4, 2, 2, generator=torch.Generator().manual_seed(3))
    broken = torch.full((1, 2, 2), math.inf)
    assert moved(build(method, norms=norms), records, torch.cat([records, broken])) == 0
