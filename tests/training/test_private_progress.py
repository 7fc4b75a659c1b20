"""Private progress: the groups' figures in one sum with their gradients, on neighbours, under noise, and as a curve."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.view import read_view
from dpfed.bounding.clipping import Clip
from dpfed.config import OptimizerConfig, parse_config
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.metrics_window import MetricsWindow
from dpfed.privacy.noise import KeyedNoise
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.report.card import table_rows
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain, resume
from dpfed.training import worker as worker_room
from dpfed.training.coordinator import Coordinator
from dpfed.training.private_metrics import PrivateMetrics
from tests.exact_sums import exact
from tests.killed import killed
from tests.sparing import sparing
from tests.training.test_sensitivity import pictures, sum_of, sums

SHARE = 0.3


def parts_of(tree, **progress):
    tree |= {"diagnostics": "private", "progress": {"share": SHARE, "loss_range": 4.0, "phase": 2} | progress}
    return build(parse_config(tree), Randomness.from_seed(5))


class TurnsRound(torch.nn.Module):
    """A group's gradient turns round, and its loss goes from none to a large one, when one particular record joins it."""

    def __init__(self, marked):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.register_buffer("marked", marked)
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, views):
        images = views["image"]
        sign = torch.where(torch.cdist(images[:, 0].flatten(1), self.marked, p=1).min() < 1e-3, -1.0, 1.0)
        places = torch.eye(64)[: len(images), None]
        return {"image": places * (1 + 1e4 * self.weight), "text": 5 * sign * places}


def moved_by_the_adversary(tiny) -> tuple[float, PrivacyPlan]:
    """How far the joint sum moves without the record that the model is against."""
    tiny["views"] = {}  # the adversary knows its record by its pixels
    parts = parts_of(tiny)
    indices, keys = parts.store.split("train"), parts.store.keys[parts.store.split("train")]
    draw = worker_room.draw_step(parts.plan, Randomness.from_seed(5), 0, indices, keys, parts.plan.groups)
    target = next(draw.members(g) for g in range(len(draw)) if len(draw.members(g)) >= 3)[0]
    hostile = parts.with_learner(model=TurnsRound(pictures(parts, [target])))
    one, other = sums(hostile, int(np.flatnonzero(indices == target)[0]), 0)
    return (one - other).norm().item(), parts.plan


def test_a_neighbour_moves_gradient_and_figures_within_bounds(tiny):
    moved, plan = moved_by_the_adversary(tiny)
    assert moved <= plan.sensitivity
    # More than the gradient alone can: noise for 2C, without the figures' share, would be too little.
    assert moved > 1.05 * 2 * plan.bounding.clip_norm


def test_a_share_that_is_not_accounted_for_is_found_out(tiny, monkeypatch):
    """The mechanism broken on purpose: noise as if the gradients were released alone."""
    monkeypatch.setattr(PrivacyPlan, "_gradient_part", 1.0)
    moved, plan = moved_by_the_adversary(tiny)
    assert plan.noise_std == plan.noise.multiplier * 2 * plan.bounding.clip_norm and moved > 1.05 * plan.sensitivity


@pytest.mark.long
@pytest.mark.parametrize("engine", ["loop", "layerwise"])
@pytest.mark.parametrize("clipping", ["fixed", "automatic", "adaptive"])
def test_random_neighbours_stay_within_the_sensitivity(tiny, clipping, engine):
    tiny["bounding"] |= {"clipping": clipping, "engine": engine}
    parts = parts_of(tiny)
    indices, keys = parts.store.split("train"), parts.store.keys
    drawn = worker_room.draw_step(parts.plan, Randomness.from_seed(5), 0, indices, keys[indices], parts.plan.groups).indices
    whole = sum_of(parts, indices)
    assert len(whole) == TrainableVector(parts.model).numel + parts.plan.statistics_count
    for gone in drawn[:3]:
        assert 0 < (whole - sum_of(parts, indices[indices != gone])).norm() <= parts.plan.sensitivity


@pytest.mark.long
def test_a_record_with_public_ones_adds_one_part_tightly(tiny_public):
    """Clipped to next to nothing, and with a loss beyond its range, a group is at a corner of its box."""
    tiny_public["bounding"] |= {"clip_norm": 1e-5}
    parts = parts_of(tiny_public, loss_range=1e-6)
    indices, keys = parts.store.split("train"), parts.store.keys
    gone = worker_room.draw_step(parts.plan, Randomness.from_seed(5), 0, indices, keys[indices], parts.plan.groups).indices[0]
    one, other = sums(parts, int(np.flatnonzero(indices == gone)[0]), 0)
    moved = (one - other).norm().item()
    assert moved <= parts.plan.sensitivity and moved == pytest.approx(parts.plan.sensitivity, rel=0.01)
    assert parts.plan.sensitivity == pytest.approx(1e-5 / math.sqrt(1 - SHARE))


SIZE, STEPS = 8, 400
PLAN = PrivacyPlan.of(
    1000, 4, 4, 0.5, STEPS, 1.3, 1e-5, progress={"share": SHARE, "quantile": 0.5, "loss_range": 4.0, "phase": 20}
)


def coordinator_of(plan, folder, model=None, **optimizer):
    model, randomness = model or torch.nn.Linear(SIZE, 1, bias=False), Randomness.from_seed(0)
    return Coordinator(plan, model, OptimizerConfig(**optimizer), randomness, Ledger.create(folder / "l", plan))


def noise_on_every_number(folder) -> None:
    """Fails unless each number of a release, the figures too, has the planned noise, of its own."""
    coordinator = coordinator_of(PLAN, folder)
    noises = []
    for step in range(STEPS):
        clean = torch.full((SIZE + 3,), float(step))
        total = exact(clean, PLAN)
        noises.append(coordinator.release(step, total).double() - clean.double())
    noise = torch.stack(noises) / PLAN.noise_std
    assert (noise.std(0) - 1).abs().max() < 5 / math.sqrt(2 * STEPS)
    assert (torch.corrcoef(noise.T) - torch.eye(SIZE + 3)).abs().max() < 5 / math.sqrt(STEPS)


def test_every_figure_gets_noise_of_its_own(tmp_path):
    noise_on_every_number(tmp_path)


def test_a_figure_that_is_released_without_noise_is_found_out(tmp_path, monkeypatch):
    """The mechanism broken on purpose: the noise ends with the gradient."""
    real = KeyedNoise.steps
    monkeypatch.setattr(
        KeyedNoise, "steps", lambda self, values, step: torch.cat([real(self, values[:SIZE], step), values[SIZE:]])
    )
    with pytest.raises(AssertionError):
        noise_on_every_number(tmp_path)


def seen_in(monkeypatch) -> list:
    """The true figures of each step: losses per record, norms, threshold."""
    real, seen = worker_room.sum_of_statistics, []

    def watched(statistics, norms, losses, threshold, clip_norm, unit, public=0):
        seen.append(((losses[0] / (losses[1] - public)), norms, threshold))
        return real(statistics, norms, losses, threshold, clip_norm, unit, public)

    monkeypatch.setattr(worker_room, "sum_of_statistics", watched)
    return seen


def trained(tiny, folder, **changes):
    """A run whose curve can be seen, although it has few records."""
    tiny["diagnostics"], tiny["evaluation"] = "private", {"split": "none"}
    tiny["progress"] = {"share": 0.2, "phase": 3}
    tiny["privacy"] = {"noise_multiplier": 0.2, "accountant": "rdp", "batch": 120, "steps": 9, "seed": 11}
    tiny["bounding"] |= {"clip_norm": 8.0} | changes
    return pretrain(parse_config(tiny), folder)


@pytest.mark.long
@pytest.mark.parametrize("method", sparing(["group", "public"], "group"))
def test_the_curve_is_the_true_one_within_its_error(tiny, tiny_public, tmp_path, monkeypatch, method):
    seen = seen_in(monkeypatch)
    run = trained(tiny_public if method == "public" else tiny, tmp_path / "run")
    windows = read_view(run.path).windows
    assert [(window.first, window.last, window.released) for window in windows] == [(1, 3, 3), (4, 6, 3), (7, 9, 3)]
    for number, window in enumerate(windows):
        steps = seen[3 * number : 3 * number + 3]
        loss, clipped, below = (
            np.mean([figure(*step) for step in steps])
            for figure in (
                lambda losses, norms, threshold: losses.mean().item(),
                lambda losses, norms, threshold: (norms > 8.0).double().mean().item(),
                lambda losses, norms, threshold: (norms < threshold).double().mean().item(),
            )
        )
        assert abs(window.loss - loss) < 1.3 * window.loss_error  # the seed is fixed
        assert abs(window.clip_rate - clipped) < 1.3 * window.share_error + 0.01
        assert abs(window.below - below) < 1.3 * window.share_error + 0.01
        assert window.norm == pytest.approx(math.exp(np.mean([math.log(threshold) for *_, threshold in steps])), rel=1e-6)
        assert window.share_error < 0.12  # something can be seen
    card = table_rows(run.card.read_text())
    assert "noise multiplier" in card["Released statistics"] and "Training curves, with noise" in run.report.read_text()


@pytest.mark.long
def test_the_threshold_follows_the_quantile_and_clipping_it(tiny, tmp_path, monkeypatch):
    """From far away: the norms are hundreds of times as large as where it starts."""
    seen, clips = seen_in(monkeypatch), []
    real = worker_room.Worker._add_groups

    def watched(self, *rest):
        clips.append(self._clip)
        return real(self, *rest)

    monkeypatch.setattr(worker_room.Worker, "_add_groups", watched)
    run = trained(tiny, tmp_path / "run", clip_norm=0.1, clipping="adaptive")
    thresholds = [threshold for *_, threshold in seen]
    assert thresholds[0] == 0.1 and thresholds == sorted(thresholds) and thresholds[-1] > 1.5
    # What is clipped to it comes out in units of it: within the same bound at every step.
    assert {clip.bound for clip in clips} == {2.0**24}  # steps, of which C has so many
    assert [clip.most for clip in clips] == pytest.approx([2.0**24 / threshold for threshold in thresholds])
    assert "follows the 0.5 quantile" in table_rows(run.card.read_text())["Clip norm C"]
    assert all(window.clip_rate == pytest.approx(1 - window.below) for window in read_view(run.path).windows)


def test_what_was_clipped_to_the_threshold_is_used_in_its_length(tmp_path):
    """A sum of groups that all have the threshold's length makes a gradient of that length, apart from noise."""
    plan = PLAN.replace(clipping="adaptive", noise_multiplier=0.1)
    model = torch.nn.Linear(2000, 1, bias=False)
    coordinator = coordinator_of(plan, tmp_path, model, name="sgd", momentum=0.0, learning_rate=1.0)
    coordinator.private_metrics._state["threshold"].fill_(50.0)
    clean = torch.zeros(2002)
    clean[:2000] = 1000.0
    before = model.weight.detach().clone()
    coordinator.apply(0, exact(clean, plan))
    expected = 1000.0 * 50.0 / plan.bounding.clip_norm / plan.divisor
    assert (before - model.weight).mean().item() == pytest.approx(expected, rel=1e-3)


def test_an_adaptive_threshold_stays_a_valid_clip_norm():
    """Where every gradient is shorter, step after step. A threshold that is only asked about may follow them down."""
    lowest = {}
    for clipping in ("adaptive", "fixed"):
        metrics = PrivateMetrics(PLAN.replace(clip_norm=1e-4, clipping=clipping))
        statistics = metrics._statistics
        for step in range(60):
            metrics.take(step, torch.full((len(statistics.names),), 10 * statistics.unit * statistics.groups))
        lowest[clipping] = metrics.threshold
    assert lowest["adaptive"] == pytest.approx(1e-5, rel=1e-6) and lowest["fixed"] < 1e-7


@pytest.mark.long
def test_automatic_clipping_normalises_every_gradient(tiny, tmp_path, monkeypatch):
    """Without a statistic released, too; C changes nothing that a step with Adam would see, so it is not there to be set."""
    clips, real = [], worker_room.Worker._add_groups
    monkeypatch.setattr(worker_room.Worker, "_add_groups", lambda self, *rest: clips.append(self._clip) or real(self, *rest))
    tiny["bounding"] |= {"clipping": "automatic", "stability": 0.05}
    tiny["privacy"]["steps"], tiny["evaluation"] = 1, {"split": "none"}
    run = pretrain(parse_config(tiny), tmp_path / "run")
    assert [type(clip) for clip in clips] == [Clip] and (clips[0].most, clips[0].stability) == (math.inf, 0.05)
    rows = table_rows(run.card.read_text())
    assert "every gradient is normalised: multiplied by C / (its norm + 0.05)" in rows["Clip norm C"]
    assert rows["Sensitivity of the sum"] == "2" and read_view(run.path).windows == []


@pytest.mark.long
def test_a_resumed_run_has_the_same_weights_and_the_same_curve(tiny, tmp_path):
    """With adaptive clipping the weights depend on the threshold, which depends on all that was released."""
    tiny["training"]["checkpoint_every"] = 2  # in the middle of a window
    expected = trained(tiny, tmp_path / "undisturbed", clipping="adaptive")
    with killed(Coordinator, "apply", 5, before=False):  # its release is kept, and no checkpoint has taken it in
        trained(tiny, tmp_path / "run", clipping="adaptive")
    again = resume(tmp_path / "run")
    assert read_view(again.path).windows == read_view(expected.path).windows != []
    weights = [load_file(run.model / "model.safetensors") for run in (again, expected)]
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())


def test_a_discarded_step_tells_nothing_and_ends_its_window(tmp_path):
    plan = PLAN.replace(steps=40)
    coordinator = coordinator_of(plan, tmp_path)
    told = []
    for step in range(40):
        total = exact(torch.zeros(SIZE + 3), plan)
        told.append((coordinator.discard(step) if step % 20 > 14 else coordinator.apply(step, total)).window)
    assert [step for step, window in enumerate(told) if window] == [19, 39]
    assert [window.released for window in told if window] == [15, 15]
    assert told[19].share_error == pytest.approx(1.96 * plan.statistics.error(plan.noise_std, 15))


@pytest.mark.parametrize("changes", [{"loss": "low"}, {"clip_rate": True}, {"released": 1.5}, {"norm": math.nan}, {"more": 1}])
def test_a_damaged_line_of_the_curve_is_refused(tmp_path, changes):
    figures = MetricsWindow(1, 5, 5, 2.0, 0.1, None, 3.0, 0.5, 0.4, 0.1).figures()
    assert MetricsWindow.read(figures).figures() == figures
    run = RunDirectory(tmp_path)
    run.append(run.metrics, {"step": 5, "phase": figures})
    assert len(run.metric_lines()) == 1
    run.append(run.metrics, {"step": 5, "phase": figures | changes})
    with pytest.raises(UserError, match="metrics.jsonl is damaged"):
        run.metric_lines()
