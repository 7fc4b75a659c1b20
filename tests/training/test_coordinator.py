"""Noise exactly once, of the planned size, divided by the public K, paid before it is used."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.config import OptimizerConfig
from dpfed.errors import UserError
from dpfed.privacy.blocks import SMALL
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.noise import digest_of
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.coordinator import DISCARDED, Coordinator
from dpfed.training.learner import Learner
from dpfed.training.optimizers import OwnOptimizer
from dpfed.training.post_processing import states_of
from dpfed.training.releases import Releases
from tests.exact_sums import exact
from tests.host_waits import Asked

PLAN = PrivacyPlan.of(1000, 64, 4, 0.5, 20, 1.3, 1e-5)  # 16 groups, sensitivity 1, noise 1.3
SIZE = 200_000
BAD = (0, math.nan), (SIZE // 2, math.inf), (SIZE - 1, -math.inf)  # places and numbers
# plain gradient descent with rate 1: the update is minus the noisy gradient
PLAIN = OptimizerConfig(name="sgd", learning_rate=1.0, momentum=0.0)


@pytest.fixture
def make(tmp_path):
    def build(plan=PLAN, config=PLAIN, seed=0, name="ledger.jsonl", size=SIZE, releases=None):
        model = nn.Linear(size, 1, bias=False)
        nn.init.zeros_(model.weight)
        path = tmp_path / name
        ledger = Ledger.open(path) if path.exists() else Ledger.create(path, plan)
        return model, Coordinator(plan, model, config, Randomness.from_seed(seed), ledger, releases), ledger

    return build


def zeros(groups=PLAN.groups, size=SIZE, sensitivity=PLAN.sensitivity):
    return exact(torch.zeros(size), PLAN, groups, sensitivity)


def test_an_empty_steps_noise_is_exactly_the_plans(make):
    model, coordinator, _ = make()
    coordinator.apply(0, zeros())
    update = model.weight.detach()[0] * PLAN.groups
    # 200,000 draws put the sample deviation within 1%: half, double, sqrt(2) (noise twice) or C for 2C are far outside
    assert update.std().item() == pytest.approx(PLAN.noise.multiplier * 2 * PLAN.bounding.clip_norm, rel=0.01)
    assert abs(update.mean().item()) < 5 * PLAN.noise_std / SIZE**0.5


@pytest.mark.parametrize("std", [math.nan, math.inf, -math.inf, -2 * PLAN.noise_std, 0.5 * PLAN.noise_std, 1e-300])
def test_owners_noise_that_is_nan_or_too_little_is_refused(make, std):
    """With it the coordinator would add none of its own, and release the sum as it is."""
    model, coordinator, ledger = make(size=50)
    with pytest.raises(UserError, match="training-noise-low"):
        coordinator.apply(0, BoundedSum(torch.ones(50), PLAN.sensitivity, PLAN.groups, std))
    assert ledger.charged == 0 and not model.weight.any()
    coordinator.apply(0, BoundedSum(torch.ones(50), PLAN.sensitivity, PLAN.groups, PLAN.noise_std))
    assert ledger.charged == 1


def test_a_sensitivity_that_is_nan_is_refused_and_never_lost(make):
    _, coordinator, ledger = make(size=50)
    unknown = zeros(PLAN.groups // 2, 50, math.nan)
    with pytest.raises(UserError, match=r"got 8 groups, 50 numbers and sensitivity nan.*\[training-sum-unplanned"):
        coordinator.apply(0, unknown)
    for one, other in ((unknown, zeros(PLAN.groups // 2, 50)), (zeros(PLAN.groups // 2, 50), unknown)):
        with pytest.raises(UserError, match="bounding-sensitivity"):
            one + other
    assert ledger.charged == 0


def test_noise_is_fresh_in_every_step(make):
    model, coordinator, _ = make()
    for step in range(4):
        coordinator.apply(step, zeros())
    assert (model.weight.detach() * PLAN.groups).std().item() == pytest.approx(2 * PLAN.noise_std, rel=0.01)


def test_the_sum_goes_through_unchanged_beside_the_noise(make):
    other, with_signal, _ = make()
    signal = torch.linspace(-1, 1, SIZE)
    with_signal.apply(0, exact(signal, PLAN))
    update = other.weight.detach()[0] * -PLAN.groups
    # Least squares of the update on the signal: 1, up to the noise (here 4 standard errors).
    assert abs((update @ signal / (signal @ signal)).item() - 1) < 4 * PLAN.noise_std / signal.norm().item()


def test_the_payment_is_on_disk_before_the_parameters_move(make, monkeypatch):
    model, coordinator, ledger = make()
    seen = []
    take_step = coordinator.optimizer.step
    monkeypatch.setattr(coordinator.optimizer, "step", lambda: (seen.append(Ledger.open(ledger.path).charged), take_step()))
    for step in range(3):
        coordinator.apply(step, zeros())
    assert seen == [1, 2, 3]

    def disk_full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("dpfed.privacy.ledger.append_lines", disk_full)
    before = model.weight.detach().clone()
    with pytest.raises(OSError):
        coordinator.apply(3, zeros())
    assert torch.equal(model.weight, before)


def test_an_identical_replay_is_free_and_another_sum_refused(make):
    """Two releases of one step would hold the same sampled records, which costs more than two independent steps."""
    one, coordinator, _ = make()
    coordinator.apply(0, zeros())

    same, again, ledger = make()
    again.apply(0, zeros())
    assert torch.equal(same.weight, one.weight) and (ledger.charged, ledger.replays) == (1, 1)

    other, differs, ledger = make()
    sum_ = zeros()
    sum_.values[0] = 1
    with pytest.raises(UserError, match="training-step-differs"):
        differs.apply(0, sum_)
    assert ledger.charged == 1 and not other.weight.any()


def test_a_kept_release_is_repeated_without_the_records(make, tmp_path):
    releases = Releases(tmp_path / "releases")
    one, coordinator, _ = make(releases=releases)
    coordinator.apply(0, zeros())
    same, again, ledger = make(releases=releases)
    assert again.replay(0) is not None and again.replay(1) is None
    assert torch.equal(same.weight, one.weight) and (ledger.charged, ledger.replays) == (1, 1)
    [kept] = (tmp_path / "releases").iterdir()
    kept.write_bytes(b"damaged!")
    assert make(releases=releases)[1].replay(0) is None  # then the step is computed again, and must come out the same


@pytest.mark.parametrize("paid", range(4))
def test_of_several_kept_releases_the_paid_one_is_repeated(make, tmp_path, paid):
    """Coordinators of one run, on storage whose locks failed: each kept a sum, one of them paid."""
    releases = Releases(tmp_path / "releases")
    kept = [torch.full((SIZE,), float(value)) for value in range(4)]
    for noisy in kept:
        releases.save(Release(0, digest_of(noisy)), noisy)
    model, coordinator, ledger = make(releases=releases)
    ledger.charge(Release(0, digest_of(kept[paid])))
    assert coordinator.replay(0) is not None and ledger.charged == 1
    assert torch.equal(model.weight.detach().flatten(), -kept[paid] / PLAN.groups)


def test_a_ledger_without_a_kept_releases_line_is_refused(make, tmp_path):
    releases = Releases(tmp_path / "releases")
    _, coordinator, ledger = make(releases=releases)
    for step in range(3):
        coordinator.apply(step, zeros())
    ledger.path.write_text("".join(ledger.path.read_text().splitlines(keepends=True)[:2]))
    _, again, _ = make(releases=releases)
    assert again.replay(0) is not None
    with pytest.raises(UserError, match=r"step 1.*\[training-line"):
        again.replay(1)


def test_an_unpaid_release_is_paid_and_used_after_a_crash(make, tmp_path, monkeypatch):
    """Other workers, or another number of them, would compute another sum; the kept one must stay the only one."""
    releases = Releases(tmp_path / "releases")
    _, coordinator, ledger = make(releases=releases)

    def crash(release):
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger, "charge", crash)
    with pytest.raises(KeyboardInterrupt):
        coordinator.apply(0, zeros())
    assert Ledger.open(ledger.path).charged == 0
    model, again, ledger = make(releases=releases)
    assert again.replay(0) is not None
    assert Ledger.open(ledger.path).charged == 1 and ledger.replays == 0
    assert torch.equal(model.weight.detach().flatten(), -PLAIN.learning_rate * releases.load(0, again.blocks) / PLAN.groups)


def test_a_release_beyond_the_budget_is_never_kept(make, tmp_path):
    plan = PLAN.replace(steps=1, target_epsilon=PLAN.epsilon(1))
    releases = Releases(tmp_path / "releases")
    _, coordinator, ledger = make(plan, releases=releases)
    coordinator.apply(0, zeros())
    with pytest.raises(UserError, match="ledger-spent"):
        coordinator.apply(1, zeros())
    assert releases.latest() == 0 and ledger.charged == 1


def test_noise_and_accounting_must_follow_from_one_plan(make, tmp_path):
    model, _, _ = make()
    other = Ledger.create(tmp_path / "other.jsonl", PrivacyPlan.of(1000, 64, 4, 0.5, 20, 1.4, 1e-5))
    with pytest.raises(UserError, match="training-other-plan"):
        Coordinator(PLAN, model, PLAIN, Randomness.from_seed(0), other)


def test_copies_of_a_run_that_part_ways_never_share_noise(make):
    """A run directory is copied, key and all, and both copies are resumed with different settings: same step, other sums."""
    releases = []
    for name, size in (("one.jsonl", 0), ("two.jsonl", 1)):
        model, coordinator, _ = make(name=name)
        sum_ = zeros()
        sum_.values[:] = size
        coordinator.apply(3, sum_)
        releases.append(model.weight.detach()[0])
    assert abs(torch.corrcoef(torch.stack(releases))[0, 1]) < 0.01


def test_a_copy_with_another_plan_has_noise_of_its_own(make):
    """The same sum under two noise multipliers: with the same noise, two equations would give the sum."""
    updates = []
    for sigma in (PLAN.noise.multiplier, 2 * PLAN.noise.multiplier):
        model, coordinator, _ = make(PLAN.replace(noise_multiplier=sigma), name=f"{sigma}.jsonl")
        coordinator.apply(3, zeros())
        updates.append(model.weight.detach()[0])
    assert abs(torch.corrcoef(torch.stack(updates))[0, 1]) < 0.01


@pytest.mark.parametrize(
    "wrong",
    [
        zeros(groups=PLAN.groups - 1),
        zeros(sensitivity=2 * PLAN.sensitivity),
        zeros(size=7),
        *(
            BoundedSum(torch.zeros(SIZE).index_fill_(0, torch.tensor(at), bad), PLAN.sensitivity, PLAN.groups, PLAN.noise_std)
            for at, bad in BAD
        ),
    ],
    ids=["groups", "sensitivity", "size", "nan", "inf", "-inf"],
)
def test_a_sum_unlike_the_plans_is_refused_and_not_paid(make, wrong):
    model, coordinator, ledger = make()
    with pytest.raises(UserError, match=r"step 5.*\[training-sum"):
        coordinator.apply(5, wrong)
    assert ledger.charged == 0 and not model.weight.any()


@pytest.mark.parametrize(
    "wrong",
    [
        BoundedSum(torch.zeros(SIZE), PLAN.sensitivity, PLAN.groups),
        dataclasses.replace(zeros(), unit=2 * PLAN.grid_of().unit),
        dataclasses.replace(zeros(), unit=1.0),
        dataclasses.replace(zeros(), noise_std=PLAN.noise_std),
    ],
    ids=["floats before the noise", "a coarser grid", "no grid", "whole numbers with noise"],
)
def test_a_sum_on_another_grid_is_refused_and_not_paid(make, wrong):
    """On a coarser grid than the plan's, a record would move it by more than the noise is for."""
    model, coordinator, ledger = make()
    with pytest.raises(UserError, match=r"step 5.*\[training-(other-grid|no-floats)\]"):
        coordinator.apply(5, wrong)
    assert ledger.charged == 0 and not model.weight.any()


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lars"])
def test_every_optimizer_follows_the_gradient(make, name):
    plan = PrivacyPlan.of(1000, 64, 4, 1e-4, 20, 0.1, 1e-5)
    model, coordinator, _ = make(plan, OptimizerConfig(name=name, learning_rate=0.1, warmup=2, schedule="cosine"), size=10)
    nn.init.ones_(model.weight)
    for step in range(4):
        coordinator.apply(step, exact(torch.ones(10) * plan.groups, plan))
    assert (model.weight < 1).all()


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", {0: 0.2, 1: 0.4, 3: 0.8, 4: 0.8, 19: 0.8}),
        ("cosine", {0: 0.2, 1: 0.4, 3: 0.8, 4: 0.8, 12: 0.4, 19: 0.8 * 0.5 * (1 + math.cos(math.pi * 15 / 16))}),
    ],
)
def test_a_step_is_as_long_as_its_schedule_says(make, schedule, rates):
    """Of 20 steps, four are a warm-up."""
    shape = {"name": "sgd", "learning_rate": 0.8, "momentum": 0.0, "warmup": 4, "schedule": schedule}
    model, coordinator, _ = make(config=OptimizerConfig(**shape), size=1000)
    for step, rate in rates.items():
        before = model.weight.detach().clone()
        summary = coordinator.apply(step, zeros(size=1000))
        moved = (model.weight.detach() - before).norm().item()
        assert summary.learning_rate == pytest.approx(rate)
        assert moved == pytest.approx(rate * summary.noisy_gradient_norm, rel=1e-3)


@pytest.mark.parametrize("size", [SIZE, SMALL + 1])
def test_an_update_asks_the_device_once(make, size, monkeypatch):
    """For the norm and the finiteness together; on a GPU, each question is a wait."""
    model, coordinator, _ = make(size=size)
    monkeypatch.setattr("dpfed.training.coordinator._on_gpu", lambda values: True)
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(1))
    with Asked(torch.device("cpu"), []) as asked:
        summary = coordinator._update(0, gradient * PLAN.groups)
    assert asked.seen == ["tolist"]
    assert summary.noisy_gradient_norm == pytest.approx(gradient.double().norm().item(), rel=1e-5)
    with pytest.raises(UserError, match="optimizer-diverged"):
        coordinator._update(1, torch.full((size,), math.nan))


def test_diverged_parameters_stop_the_run_with_a_sentence(make):
    _, coordinator, _ = make(config=OptimizerConfig(name="sgd").model_copy(update={"learning_rate": 1e38}))
    with pytest.raises(UserError, match=r"learning_rate.*\[optimizer-diverged"):
        for step in range(10):
            coordinator.apply(step, zeros())


def test_diverged_parameters_of_an_own_optimizer_blame_no_key(tmp_path):
    model, own = nn.Linear(8, 1, bias=False), OwnOptimizer(lambda parameters: torch.optim.SGD(parameters, lr=3.0))
    ledger = Ledger.create(tmp_path / "ledger.jsonl", PLAN)
    coordinator = Coordinator(PLAN, model, PLAIN, Randomness.from_seed(0), ledger, own_optimizer=own)
    with pytest.raises(UserError, match=r"learning rate of your optimizer \(now 3\).*optimizer-diverged"):
        coordinator._update(0, torch.full((8,), math.nan))


def test_the_average_of_weights_lags_behind_and_costs_nothing(make):
    model, coordinator, ledger = make(config=OptimizerConfig(name="sgd", learning_rate=1.0, momentum=0.0, ema=0.9))
    for step in range(10):
        coordinator.apply(step, zeros())
    (average,) = states_of(coordinator.post_processors).values()
    assert 0 < average.norm() < model.weight.norm()
    assert ledger.charged == 10


def test_noise_that_the_owners_added_is_not_added_again(make):
    model, coordinator, _ = make()
    coordinator.apply(0, BoundedSum(torch.zeros(SIZE), PLAN.sensitivity, PLAN.groups, PLAN.noise_std))
    assert not model.weight.any()


@pytest.mark.parametrize("share", [0.5, 0.99, 2**-0.5, 1 - 1e-6])
def test_less_noise_than_the_plans_is_refused(make, share):
    model, coordinator, ledger = make()
    with pytest.raises(UserError, match="training-noise-low"):
        coordinator.apply(0, BoundedSum(torch.zeros(SIZE), PLAN.sensitivity, PLAN.groups, share * PLAN.noise_std))
    assert ledger.charged == 0 and not model.weight.any()


@pytest.mark.parametrize("sensitivities", [(1.0, 2.0), (2.0, 1.0)])
def test_noise_adds_in_variance_and_larger_sensitivity_counts(sensitivities):
    one, other = (dataclasses.replace(zeros(8), sensitivity=sensitivity) for sensitivity in sensitivities)
    both = dataclasses.replace(one, noise_std=3.0) + dataclasses.replace(other, noise_std=4.0)
    assert (both.noise_std, both.sensitivity, both.groups) == (5.0, 2.0, 16)


def test_a_discarded_step_is_paid_and_not_taken_again(make, tmp_path):
    releases = Releases(tmp_path / "releases")
    config = PLAIN.model_copy(update={"ema": 0.5})
    model, coordinator, ledger = make(config=config, releases=releases)
    coordinator.apply(0, zeros())
    before = model.weight.detach().clone()
    (average,) = (value.clone() for value in states_of(coordinator.post_processors).values())
    assert coordinator.discard(1).noisy_gradient_norm is None
    assert torch.equal(model.weight, before)
    assert all(torch.equal(value, average) for value in states_of(coordinator.post_processors).values())
    assert (ledger.charged, ledger.release_of(1).digest) == (2, DISCARDED)
    with pytest.raises(UserError, match="ledger-step-twice"):
        coordinator.discard(1)
    again, resumed, reopened = make(config=config, releases=releases)
    assert resumed.replay(0) is not None
    assert resumed.replay(1).noisy_gradient_norm is None
    assert torch.equal(again.weight, before)
    assert all(torch.equal(value, average) for value in states_of(resumed.post_processors).values())
    assert reopened.charged == 2


def long_run(path, seed=0, size=700):
    """A coordinator whose sum has seven blocks, and whose ledger keeps digests of the universal hash."""
    model = nn.Linear(size, 1, bias=False)
    nn.init.zeros_(model.weight)
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path, PLAN, block=100, universal=True)
    return model, Coordinator(PLAN, model, PLAIN, Randomness.from_seed(seed), ledger, Releases(path.parent / "kept")), ledger


def test_digests_of_a_long_sum_tell_a_replay_from_another(tmp_path):
    path = tmp_path / "ledger.jsonl"
    one, coordinator, ledger = long_run(path)
    coordinator.apply(0, zeros(size=700))
    assert ledger.release_of(0).digest == coordinator.blocks.digest(-one.weight.detach().flatten() * PLAN.groups)
    again, same, reopened = long_run(path)
    assert reopened.universal and same.replay(0) is not None and torch.equal(again.weight, one.weight)
    for kept in (tmp_path / "kept").iterdir():
        kept.unlink()
    repeated, computed, _ = long_run(path)
    computed.apply(0, zeros(size=700))
    assert torch.equal(repeated.weight, one.weight) and Ledger.open(path).replays == 2
    for change in (0, 1, 699):
        other, differs, ledger = long_run(path)
        sum_ = zeros(size=700)
        sum_.values[change] = 1
        with pytest.raises(UserError, match="training-step-differs"):
            differs.apply(0, sum_)
        assert ledger.charged == 1 and not other.weight.any()
    with pytest.raises(UserError, match="training-step-differs"):
        long_run(path, seed=1)[1].apply(0, zeros(size=700))


def test_another_long_sum_gets_independent_noise_everywhere(tmp_path):
    """By the universal hash of the whole sum: also in the blocks that are equal."""
    noise = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        model, coordinator, _ = long_run(tmp_path / str(number) / "ledger.jsonl", size=20_000)
        sum_ = zeros(size=20_000)
        sum_.values[-1] += number
        coordinator.apply(0, sum_)
        noise.append(-model.weight.detach().flatten() * PLAN.groups)
    assert noise[0].std().item() == pytest.approx(PLAN.noise_std, rel=0.03)
    assert abs(torch.corrcoef(torch.stack(noise))[0, 1]) < 0.04


@pytest.mark.parametrize("device, expected", [("cpu", False), ("cuda", True)])
def test_a_new_run_on_a_gpu_digests_long_sums_there(tmp_path, monkeypatch, device, expected):
    for size, universal in ((20, False), (SMALL + 1, expected)):
        learner = SimpleNamespace(model=nn.Linear(size, 1, bias=False), plan=PLAN, released_in_blocks=True)
        learner.device = torch.device(device)
        assert Learner.create_ledger(learner, tmp_path / f"{size}.jsonl").universal == universal
        assert Ledger.open(tmp_path / f"{size}.jsonl").universal == universal
