"""What arrays release: neighbours, noise, order on disk, and mechanisms broken on purpose."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import dpfed
from dpfed.arrays import fitting
from dpfed.arrays.fitting import Fit, Wanted
from dpfed.arrays.records import ArrayRecords, ArrayViews
from dpfed.arrays.rows import rows_of
from dpfed.bounding.pair_moments import MomentsEngine
from dpfed.models.moments import MomentHeads
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.noise import GaussianNoise
from dpfed.privacy.randomness import Randomness
from dpfed.training.coordinator import Coordinator
from tests.arrays.two_views import two_views

N = 200
WANTED = Wanted(epsilon=4.0, delta=1e-4)


def fit_of(x, y, groups=None, wanted=WANTED, path="."):
    return Fit(wanted, ArrayRecords(rows_of(x, "X"), None if y is None else rows_of(y, "Y"), groups, path))


def sums_of(fit, centre_seed=0):
    """The exact sums of both steps, the second about a centre as a noisy first one may give it."""
    with torch.no_grad():
        first = fit.heads.layout.place(0)
        drawn = torch.randn(fit.size, generator=torch.Generator().manual_seed(centre_seed))
        fit.heads.released.copy_(drawn).mul_(fit.shape.there(fit.heads))
        fit.heads.released[first.stop :] = 0
    worker = fit.worker(Randomness.from_seed(0))
    return [worker.bounded_sum(step).numbers() for step in (0, 1)]


HOSTILE = {
    "ordinary": lambda row: row,
    "huge": lambda row: row * np.float32(3e37),
    "tiny": lambda row: row * np.float32(1e-40),
    "zero": lambda row: row * 0,
    "not finite": lambda row: row * np.float32(np.nan),
    "infinite": lambda row: np.full_like(row, np.inf),
    "one-hot": lambda row: np.eye(row.shape[-1], dtype=row.dtype)[:1],
}


def moved(x, y, groups, kept, groups_kept):
    """How far both sums move, over what the plan says, between all rows and those that are kept."""
    fit = fit_of(x, y, groups)
    less = fit_of(x[kept], y if y is None else y[kept], groups_kept)
    less.plan, less.heads = fit.plan, fit.heads  # the mechanism's numbers are public and fixed: N too
    less.model, less.shape = fit.model, fit.shape
    return [
        (one - two).norm().item() / fit.plan.sensitivity_of(step)
        for step, (one, two) in enumerate(zip(sums_of(fit), sums_of(less), strict=True))
    ]


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("widths", [(24, 16), (24, 5), (24,)])
def test_one_row_moves_both_sums_by_the_sensitivity_at_most(kind, widths):
    x, *rest = two_views(N, (24, widths[-1]))
    y = rest[0] if len(widths) == 2 else None
    x = x if y is not None else np.stack([x, x], 1)
    x[-1:] = HOSTILE[kind](x[-1:]) if x.ndim == 2 else HOSTILE[kind](x[-1])[None]
    if y is not None:
        y[-1:] = HOSTILE[kind](y[-1:])
    distances = moved(x, y, None, slice(0, -1), None)
    assert max(distances) <= 1
    if kind == "ordinary":
        assert min(distances) > 0.98


def test_a_group_moves_the_sums_as_one_row_does():
    x, y = two_views(N, (24, 16))
    groups = np.array(["one"] * 40 + [f"other {number // 2}" for number in range(N - 40)])
    kept = slice(40, None)
    assert max(moved(x, y, groups, kept, groups[kept])) <= 1
    # Broken on purpose: rows that are counted each for itself move the sums by more than a group may.
    assert max(moved(x, y, None, kept, None)) > 2


def test_the_order_of_the_rows_changes_no_bit():
    x, y = two_views(N, (24, 5))
    groups, order = np.arange(N) // 3, np.random.default_rng(0).permutation(N)
    for grouping in (None, groups):
        one, two = fit_of(x, y, grouping), fit_of(x[order], y[order], grouping if grouping is None else grouping[order])
        assert all(torch.equal(*sums) for sums in zip(sums_of(one), sums_of(two), strict=True))


def test_an_engine_that_does_not_bound_a_row_is_seen(monkeypatch):
    monkeypatch.setattr(
        MomentsEngine, "_unit", lambda self, tower, features: features.double() @ tower.matrix.T / tower.fine * 9
    )
    x, y = two_views(N, (24, 24))
    assert max(moved(x, y, None, slice(0, -1), None)) > 1


def released(monkeypatch, count, **options):
    """Noise of both steps over sigma, of many fits to rows that give zeros but for one."""
    kept = []
    run = Fit.run

    def seen(self, ledger, randomness):
        run(self, ledger, randomness)
        noise = self.heads.released.double() * self.plan.divisor / self.plan.noise_std
        kept.append(noise[self.shape.there(self.heads) > 0])

    monkeypatch.setattr(Fit, "run", seen)
    x, y = np.zeros((N, 24), "f4"), np.zeros((N, 5), "f4")
    x[0], y[0] = 1, 1  # all else is noise
    for _ in range(count):
        dpfed.PrivateCCA(epsilon=0.05, **options).fit(x, y)
    return torch.stack(kept)


@pytest.mark.long
@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
def test_every_number_has_the_planned_noise_and_fits_have_their_own(monkeypatch, noise):
    releases = released(monkeypatch, 12, noise=noise, delta=1e-3)
    numbers = releases.numel()
    assert releases.std().item() == pytest.approx(1, abs=5 / math.sqrt(2 * numbers))
    assert abs(torch.corrcoef(releases)[0, 1].item()) < 5 / math.sqrt(releases.shape[1])
    assert abs(torch.corrcoef(releases.T[:40]).fill_diagonal_(0).mean().item()) < 0.1


def test_noise_that_is_too_small_is_seen(monkeypatch):
    plain = fitting.PrivacyPlan.noise_of
    monkeypatch.setattr(
        fitting.PrivacyPlan, "noise_of", lambda self, parties=1: GaussianNoise(0.5 * plain(self).std, plain(self).unit)
    )
    releases = released(monkeypatch, 4, delta=1e-3)
    # What is divided by is halved, too, so the noise is held against the plan's own promise.
    plan = fit_of(*two_views(N, (24, 5)), wanted=Wanted(0.05, 1e-3)).plan
    assert releases.std().item() * plan.noise_std < 0.6 * plan.promised_noise_std


def test_each_sum_is_charged_on_disk_before_anything_follows(monkeypatch, tmp_path):
    seen = []
    update, head = Coordinator._update, MomentHeads.head

    def charged():
        (ledger,) = tmp_path.glob("fit-*/ledger.jsonl")
        return sum("charged" in line for line in map(json.loads, ledger.read_text().splitlines()))

    def updated(self, step, noisy):
        seen.append(("update", step, charged()))
        return update(self, step, noisy)

    def made(self, side):
        seen.append(("heads", side, charged()))
        return head(self, side)

    monkeypatch.setattr(Coordinator, "_update", updated)
    monkeypatch.setattr(MomentHeads, "head", made)
    dpfed.PrivateCCA(epsilon=3, folder=tmp_path).fit(*two_views(N))
    assert seen[:2] == [("update", 0, 1), ("update", 1, 2)]
    assert [count for what, _, count in seen if what == "heads"] == [2] * (len(seen) - 2) and len(seen) > 2
    assert not list(tmp_path.glob("fit-*/secret.key"))


def test_a_fit_that_ends_early_has_spent_what_its_ledger_says(monkeypatch, tmp_path):
    def ends(self, step, noisy):
        raise RuntimeError("the power is gone")

    monkeypatch.setattr(Coordinator, "_update", ends)
    cca = dpfed.PrivateCCA(epsilon=3, folder=tmp_path)
    with pytest.raises(RuntimeError, match="power"):
        cca.fit(*two_views(N))
    assert not hasattr(cca, "heads_") and Ledger.open(tmp_path / "fit-1" / "ledger.jsonl").charged == 1
    monkeypatch.undo()
    assert "| Other fits in this folder | 1;" in cca.fit(*two_views(N)).card_
    assert [path.name for path in sorted(tmp_path.glob("fit-*/cca.json"))] == ["cca.json"]


def test_heads_never_stand_beside_the_card_of_another_fit(monkeypatch):
    cca = dpfed.PrivateCCA(epsilon=3).fit(*two_views(N))
    heads, ledger = cca.heads_, cca.ledger_

    def fails(*given):
        raise RuntimeError("no disk")

    monkeypatch.setattr("dpfed.arrays.cca.card_of", fails)
    with pytest.raises(RuntimeError, match="no disk"):
        cca.set_params(epsilon=30).fit(*two_views(N))
    assert cca.heads_ is heads and cca.ledger_ is ledger and cca.epsilon_ == pytest.approx(3, rel=0.01)


def test_rows_that_count_as_nothing_count_in_n():
    """Who divided by how many rows are finite would tell it."""
    x, y = two_views(N, (24, 16))
    less = x.copy()
    less[::2] = np.nan
    one, two = fit_of(x, y).plan, fit_of(less, y).plan
    assert one == two and one.sampling.records == N == one.divisor


def test_only_noisy_sums_reach_what_is_published(monkeypatch, tmp_path):
    """Two data sets, of which the second repeats the first one's noisy sums: nothing else differs in what is written."""
    from dpfed.privacy.blocks import SumNoise

    kept, noisy = [], SumNoise.noisy
    monkeypatch.setattr(SumNoise, "noisy", lambda self, total, step: kept.append(noisy(self, total, step)) or kept[-1])
    monkeypatch.setattr("dpfed.arrays.cca.secrets.token_hex", lambda count: "0" * 2 * count)
    one = dpfed.PrivateCCA(epsilon=3, folder=tmp_path / "one").fit(*two_views(N))
    monkeypatch.setattr(SumNoise, "noisy", lambda self, total, step: kept[step])
    two = dpfed.PrivateCCA(epsilon=3, folder=tmp_path / "two").fit(*two_views(N, seed=7))
    files = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in map(tmp_path.joinpath, ("one", "two"))
    ]
    assert len(files[0]) == 5 and files[0].keys() == files[1].keys()
    names = {path for path in files[0] if path.name != "cca.json" and files[0][path] != files[1][path]}
    assert not names and one.card_ == two.card_
    assert all(np.array_equal(one.heads_[name], two.heads_[name]) for name in one.heads_)


def test_columns_of_zeros_are_a_map_of_the_features_and_leave_no_noise():
    x, y = two_views(N, (24, 5))
    fit = fit_of(x, y)
    assert fit.heads.layout.dimensions == 24 and fit.shape.widths == (24, 5)
    views = ArrayViews(fit.records, fit.shape.padded)(np.arange(3), Randomness.from_seed(0), 0, torch.device("cpu"))
    assert views["text"].shape == (3, 1, 24) and torch.equal(views["text"][:, 0, :5], torch.from_numpy(y[:3]))
    assert not views["text"][..., 5:].any()
    cca = dpfed.PrivateCCA(epsilon=1).fit(x, y)
    assert not cca.released_[fit.shape.there(fit.heads).numpy() == 0].any()
    assert cca.heads_["text.projection"].shape == (24, 5) and not cca.heads_["text.centre"][5:].any()
