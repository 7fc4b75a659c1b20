"""Samplers are values: a new one, with its proof, is one class. Plan, draws, accounting and card follow from it."""

import dataclasses
import math
from dataclasses import dataclass

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from dpfed.bounding.methods import group
from dpfed.config import parse_config
from dpfed.data.sampling import draw_step
from dpfed.errors import UserError
from dpfed.privacy import method as methods
from dpfed.privacy.accounting import epsilon
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.samplers import ADD_OR_REMOVE, FixedSizeSampler, PoissonSampler, Sampler
from dpfed.runs.pretraining import pretrain


@dataclass(frozen=True)
class CyclicPoissonSampler(Sampler):
    """Every record draws one of b parts, once; step t draws from part t mod b, each record with probability b q.

    **Proof.** Take the parts as given: they are drawn by each record's own key, so both of two neighbours have the same ones,
    but for the record that only one of them has. That record can be drawn in the steps of its part alone, at most ceil(T / b),
    each time independently with probability b q. All other steps are alike. So the outputs are at most as far apart as those of
    ceil(T / b) Poisson samples at rate b q; and so is their mixture over the parts, which divergences do not exceed.
    """

    rate: float
    parts: int
    relation = ADD_OR_REMOVE

    @property
    def participation(self) -> float:
        return self.rate

    def draw(self, randomness, step, keys, uniforms):
        part = (randomness.per_record("part", 0, keys, 1)[:, 0] * self.parts).astype(int)
        return np.flatnonzero((part == step % self.parts) & (uniforms < self.parts * self.rate))

    def poisson_steps(self, steps):
        return self.parts * self.rate, math.ceil(steps / self.parts)

    def describe(self, protected):
        return f"cyclic Poisson: every {protected} can be drawn in each {self.parts}th step"


PARTS = 3
KEYS = np.random.default_rng(0).integers(0, 2**63, 900, dtype=np.uint64)
PLAN = PrivacyPlan.of(900, 90, 9, 1.0, 7, 1.1, 1e-5, "rdp")


@pytest.fixture
def cyclic(monkeypatch):
    """Group clipping with the sampler above."""

    def cyclic(given):
        return Mechanism(CyclicPoissonSampler(given.rate, PARTS), given.noise_multiplier)

    monkeypatch.setattr(group, "METHOD", dataclasses.replace(group.METHOD, mechanism=cyclic))
    methods.method_named.cache_clear()
    yield
    methods.method_named.cache_clear()


def drawn(plan, step, keys=KEYS):
    """The keys that a step draws."""
    indices = np.arange(len(keys))
    return set(keys[draw_step(plan, Randomness.from_seed(4), step, indices, keys, plan.groups).indices].tolist())


def spent(steps, rate):
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(1.1))
    return RdpAccountant().compose(dp_accounting.SelfComposedDpEvent(event, steps)).get_epsilon(1e-5)


@pytest.mark.long
def test_plan_and_accounting_follow_from_the_sampler(cyclic):
    assert PLAN.mechanism.sampler == CyclicPoissonSampler(0.1, PARTS)
    assert [PLAN.epsilon(steps) for steps in (1, 3, 4, 7)] == pytest.approx([spent(count, 0.3) for count in (1, 1, 2, 3)])
    assert PLAN.epsilon(accountant="pld") < PLAN.epsilon() * 1.001
    calibrated = PrivacyPlan.calibrate(900, 90, 7, 2.0, 1e-5, group_size=9, clip_norm=1.0)
    less = calibrated.replace(noise_multiplier=calibrated.noise.multiplier * 0.99)
    assert calibrated.epsilon() <= 2.0 < less.epsilon()


def test_a_record_is_drawn_in_its_parts_steps_only(cyclic):
    steps = [drawn(PLAN, step) for step in range(60)]
    for key in KEYS[:200].tolist():
        assert len({step % PARTS for step, keys in enumerate(steps) if key in keys}) <= 1
    assert np.mean([len(keys) for keys in steps]) == pytest.approx(90, rel=0.05)
    assert all(drawn(PLAN, step, KEYS[5:]) == steps[step] - set(KEYS[:5].tolist()) for step in range(12))


@pytest.mark.long
def test_a_run_draws_accounts_and_says_so_on_its_card(cyclic, tiny, tmp_path):
    tiny["privacy"] = {"noise_multiplier": 1.1, "accountant": "rdp", "batch": 60, "steps": 4, "delta": 1e-5}
    run = pretrain(parse_config(tiny), tmp_path / "run")
    assert "cyclic Poisson: every record can be drawn in each 3th step" in run.card.read_text()
    assert Ledger.open(run.ledger).epsilon == pytest.approx(spent(2, 0.3))


@pytest.mark.parametrize("sampler", [PoissonSampler(0.1), FixedSizeSampler(900, 90), CyclicPoissonSampler(0.1, PARTS)])
def test_every_record_takes_part_as_often_as_the_sampler_says(sampler):
    drawn, count, steps = sampler.participants(Randomness.from_seed(1), KEYS), np.zeros(len(KEYS)), 600
    for step in range(steps):
        places = drawn(step)
        assert (np.diff(places) > 0).all()
        count[places] += 1
    if isinstance(sampler, FixedSizeSampler):
        assert count.sum() == steps * 90
    share = count / steps
    assert share.mean() == pytest.approx(sampler.participation, rel=0.02)
    assert share.std() < 1.3 * math.sqrt(PARTS * 0.1 * 0.9 / steps)
    assert hash(sampler) == hash(dataclasses.replace(sampler))


def sampled(multiplier, rate, steps):
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    return dp_accounting.SelfComposedDpEvent(step, steps)


@pytest.mark.parametrize(
    ("sampler", "rate", "steps"), [(PoissonSampler(0.1), 0.1, 7), (CyclicPoissonSampler(0.1, PARTS), PARTS * 0.1, 3)]
)
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_releases_of_one_sample_are_paid_for_together(sampler, rate, steps, accountant):
    """Each as a release of a sample of its own would be too cheap: who is in one is in all."""
    thrice = Mechanism(sampler, 1.1, releases=3)
    assert thrice.event(7) == sampled(1.1 / math.sqrt(3), rate, steps)
    each = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(1.1)] * 3)
    theirs = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(rate, each), steps)
    spent = epsilon(thrice, 7, 1e-5, accountant)
    if accountant == "rdp":
        assert spent == pytest.approx(RdpAccountant().compose(theirs).get_epsilon(1e-5), rel=1e-9)
    assert spent > 1.05 * epsilon(Mechanism(sampler, 1.1), 21, 1e-5, accountant)


def test_samples_of_fixed_size_are_accounted_as_published():
    sampler = FixedSizeSampler(900, 90)
    thrice = Mechanism(sampler, 1.1, releases=3)
    assert thrice.poisson_steps(7) is None
    assert thrice.event(7) == sampler.event(dp_accounting.GaussianDpEvent(1.1), 21)
    assert epsilon(thrice, 7, 1e-5, "rdp") == epsilon(Mechanism(sampler, 1.1), 21, 1e-5, "rdp")


def test_an_event_is_what_the_sampler_costs():
    assert Mechanism(PoissonSampler(0.1), 1.1).event(7) == sampled(1.1, 0.1, 7)
    fixed, release = FixedSizeSampler(900, 90), dp_accounting.GaussianDpEvent(1.1)
    sample = dp_accounting.SampledWithoutReplacementDpEvent(900, 90, release)
    assert fixed.event(release, 7) == dp_accounting.SelfComposedDpEvent(sample, 7)
    assert fixed.relation.of_accountants is dp_accounting.NeighboringRelation.REPLACE_ONE
    assert PoissonSampler(0.1).relation.of_accountants is dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    with pytest.raises(UserError, match="samples otherwise .fixed size: 90 records.*sampling-needs-rdp"):
        epsilon(Mechanism(fixed, 1.1, releases=2), 7, 1e-5, "pld")
    with pytest.raises(UserError, match="accountant must be one of rdp with method 'dpcl'"):
        PrivacyPlan.of(900, 90, 9, 1.0, 7, 1.1, 1e-5, "pld", method_name="dpcl", options={"releases": 2})


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1])
def test_nobody_takes_part_more_than_always(rate):
    with pytest.raises(ValueError, match="expected more than 0, at most 1"):
        Mechanism(PoissonSampler(rate), 1.0)
