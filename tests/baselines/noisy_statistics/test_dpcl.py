"""DPCL as published: it computes what the paper says, and its sensitivity of 4C does not hold."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from dpfed.baselines.noisy_statistics.published_dpcl import PublishedMoments, PublishedSimilarity
from dpfed.baselines.noisy_statistics.record_gradients import StatisticsEngine
from dpfed.baselines.noisy_statistics.released_embeddings import ReleasedEmbeddings, ReleasedMoments
from dpfed.bounding.engines import GroupBatch
from dpfed.building import engine as of_config
from dpfed.building.method import public_parameters
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.privacy.method import method_named
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.samplers import FixedSizeSampler
from tests.baselines.noisy_statistics.released_lab import MODELS, batch_for, silent

COUNT = 10


def views_for(kind: str) -> dict[str, torch.Tensor]:
    return batch_for(kind, COUNT).views


def config_for(kind: str, objective: str = "infonce", **bounding):
    config = parse_config(
        {"model": MODELS[kind], "objective": {"learn_temperature": True}, "bounding": {"method": "dpcl", **bounding}}
    )
    return config.model_copy(update={"objective": config.objective.model_copy(update={"name": objective})})


def engine_for(kind: str, statistics, by_view: bool = True) -> tuple[torch.nn.Module, StatisticsEngine]:
    config = config_for(kind)
    model = build_model(config.model, config.objective)
    return model, StatisticsEngine(model, "fp32", statistics, by_view)


def total(engine: StatisticsEngine, views, clip_norm: float) -> torch.Tensor:
    into = engine.zeros()
    engine.add_clipped(GroupBatch(views, [0, COUNT]), clip_norm, into)
    return into.double()


def gradient(loss: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
    parts = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts]).double()


@pytest.mark.parametrize("kind", list(MODELS))
def test_clean_similarities_give_the_contrastive_losss_gradient(kind):
    model, engine = engine_for(kind, PublishedSimilarity(kind == "two towers", silent()))
    views = views_for(kind)
    z = model(views)
    a, b = z["image"][:, 0], (z["text"][:, 0] if "text" in z else z["image"][:, 1])
    loss = 0
    for i in range(COUNT):
        positive = torch.exp(a[i] @ b[i] / model.temperature)
        for anchor, across, along in ((a[i], b, a), (b[i], a, b)):
            others = [across[j] for j in range(COUNT) if j != i]
            if kind == "one tower":  # equation 4: all views but the anchor
                others += [along[j] for j in range(COUNT) if j != i]
            negatives = sum(torch.exp(anchor @ other / model.temperature) for other in others)
            loss = loss - torch.log(positive / (positive + negatives))
    expected = gradient(loss, model)
    assert (total(engine, views, 1e9) - expected).norm() / expected.norm() < 1e-4


@pytest.mark.parametrize("kind", list(MODELS))
def test_clean_moments_give_the_gradient_at_fixed_statistics(kind):
    model, engine = engine_for(kind, PublishedMoments(silent(), silent()))
    views = views_for(kind)
    z = model(views)
    sides = (z["image"][:, 0], z["text"][:, 0] if "text" in z else z["image"][:, 1])
    standard = [(side - side.mean(0).detach()) / (side.var(0).detach() + 1e-5).sqrt() for side in sides]
    correlation = standard[0].T @ standard[1] / COUNT
    weights = torch.where(torch.eye(16, dtype=torch.bool), 1.0, 5e-3)
    expected = gradient((weights * (torch.eye(16) - correlation) ** 2).sum(), model)
    assert (total(engine, views, 1e9) / COUNT - expected).norm() / expected.norm() < 1e-3


# --- the violation --------------------------------------------------------------------------------------------------------


class Shift(torch.nn.Module):
    """Embeds a view as the direction of what it holds: the first pixels or the tokens, moved by a trainable vector."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = torch.nn.Parameter(torch.zeros(8)), torch.nn.Parameter(torch.zeros(8))
        self.register_buffer("temperature", torch.tensor(0.1))

    def forward(self, views):
        embeddings = {"image": normalize(views["image"].flatten(2)[..., :8] + self.image, dim=2)}
        if "text" in views:
            embeddings["text"] = normalize(views["text"].float() + self.text, dim=2)
        return embeddings


def views_of(kind: str, one: tuple[int, int], others: tuple[int, int]) -> dict[str, torch.Tensor]:
    """One record of one direction (in the plane of the first two axes), all others of another."""
    points = torch.zeros(COUNT, 1, 8, dtype=torch.long)
    points[:, 0, :2] = torch.tensor(others)
    points[0, 0, :2] = torch.tensor(one)
    image = torch.zeros(COUNT, 1, 3, 4, 4)
    image.view(COUNT, 1, -1)[..., :8] = points.float()
    if kind == "one tower":
        return {"image": image.expand(-1, 2, -1, -1, -1).contiguous()}
    return {"image": image, "text": points}


def fixed(statistics, release):
    """Statistics whose release came out the same for both neighbours, as the paper's argument supposes."""
    statistics.release = lambda *_: release
    return statistics


def moved(statistics, neighbours: list[dict[str, torch.Tensor]], clip_norm: float, by_view: bool = True) -> float:
    """How far the clipped sum moves when the first record is replaced, in units of C."""
    engine = StatisticsEngine(Shift(), "fp32", statistics, by_view)
    one, two = (total(engine, views, clip_norm) for views in neighbours)
    return (one - two).norm().item() / clip_norm


def opposite(kind: str) -> list[dict[str, torch.Tensor]]:
    return [views_of(kind, one, (0, 1)) for one in ((1, 0), (-1, 0))]


def mirrored(kind: str) -> list[dict[str, torch.Tensor]]:
    return [views_of(kind, one, (1, 1)) for one in ((2, 1), (1, 2))]


def towards_the_first(kind: str) -> torch.Tensor:
    """Noisy similarities by which all find the first record most alike: a value that the noise can give, like any other."""
    similarity = torch.zeros(COUNT, COUNT) if kind == "two towers" else torch.zeros(2 * COUNT, 2 * COUNT)
    similarity[0] = similarity[:, 0] = 5.0
    return similarity


@pytest.mark.parametrize("kind", list(MODELS))
def test_given_noisy_similarities_a_record_moves_far_over_4c(kind):
    statistics = fixed(PublishedSimilarity(kind == "two towers", silent()), towards_the_first(kind))
    assert moved(statistics, opposite(kind), 1e-3) > 6 * 4


@pytest.mark.parametrize("kind", list(MODELS))
def test_given_noisy_moments_a_record_moves_far_over_4c(kind):
    release = torch.zeros(2, 8), torch.full((2, 8), 0.1)
    assert moved(fixed(PublishedMoments(silent(), silent()), release), mirrored(kind), 1e-3) > 6 * 4


@pytest.mark.parametrize("neighbours", [opposite, mirrored])
@pytest.mark.parametrize("kind", list(MODELS))
def test_the_sound_forms_move_by_2c_at_most_on_these_neighbours(kind, neighbours):
    slots = ReleasedEmbeddings(6, COUNT, silent(), Randomness.from_seed(1))
    forms = [fixed(slots, torch.randn(6, 2, 8)), fixed(ReleasedMoments(COUNT, silent()), COUNT * torch.rand(12, 8))]
    for statistics in forms:  # replacing is removing and adding
        assert moved(statistics, neighbours(kind), 1e-3, by_view=False) <= 2 * (1 + 1e-4)


# --- the method -----------------------------------------------------------------------------------------------------------


def plan_for(config, **fields) -> PrivacyPlan:
    numbers = {"records": 50, "batch": COUNT, "group_size": 5, "steps": 10, "noise_multiplier": 0.8, "delta": 1e-5}
    options = public_parameters(config)
    return PrivacyPlan.of(
        **{**numbers, "clip_norm": 0.5, "method_name": "dpcl", "accountant": "rdp", "options": options, **fields}
    )


def test_it_is_marked_unsound_and_has_the_planned_noise():
    method = method_named("dpcl")
    assert not method.sound
    for objective, releases in (("infonce", 2), ("barlow_twins", 5)):
        config = config_for("one tower", objective)
        plan = plan_for(config)
        assert plan.bounding.options == {"releases": releases} and plan.mechanism.sampler == FixedSizeSampler(50, COUNT)
        model = build_model(config_for("one tower").model, config_for("one tower").objective)
        statistics = of_config.engine_for(model, plan, Randomness.from_seed(1), 0, config=config)._statistics
        if objective == "infonce":
            noise = statistics.release(torch.zeros(200, 200), 0)
            assert noise.std() == pytest.approx(0.8 * 4 * math.sqrt(2 * COUNT - 1), rel=0.02)
        else:
            mean, _ = statistics.release(torch.zeros(1, 2, 5000), 0)
            assert mean.std() == pytest.approx(0.8 * 2 / COUNT, rel=0.05)
            assert statistics._scatter_noise.noise.std == pytest.approx(0.8 * 6)
            both = [noise.add_(torch.zeros(5000), 0) for noise in (statistics._mean_noise, statistics._scatter_noise)]
            assert abs(torch.corrcoef(torch.stack(both))[0, 1]) < 0.1  # each has its own, whatever it is on
        assert plan.noise_std == pytest.approx(0.8 * 4 * 0.5)


def test_what_the_method_cannot_do_is_refused():
    with pytest.raises(UserError, match="got 'siglip'"):
        public_parameters(config_for("one tower", "siglip"))
    with pytest.raises(UserError, match="no options, got slots"):
        public_parameters(config_for("one tower", options={"slots": 3}))
