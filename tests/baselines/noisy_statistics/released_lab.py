"""Small models, batches and plans for the tests of released statistics."""

import torch

from dpfed.baselines.noisy_statistics.record_gradients import StatisticsEngine
from dpfed.baselines.noisy_statistics.released_embeddings import ReleasedEmbeddings, release_noise
from dpfed.bounding.engines import GroupBatch
from dpfed.building.method import public_parameters
from dpfed.config import Config, parse_config
from dpfed.models.building import build_model
from dpfed.privacy.noise import KeyedNoise
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness

MODELS = {
    "one tower": {"width": 8, "embedding": 16, "head_hidden": 16},
    "two towers": dict(kind="image-text", width=8, text_width=16, text_layers=1, vocabulary=128, embedding=16, context=8),
}
SLOTS = 6


def silent(context: str = "") -> KeyedNoise:
    return release_noise(Randomness.from_seed(1), 0.0, 0, context)


def in_slots(noise: KeyedNoise | None = None, slots: int = SLOTS, batch: int = 12) -> ReleasedEmbeddings:
    return ReleasedEmbeddings(slots, batch, noise or silent(), Randomness.from_seed(1))


def batch_for(kind: str, count: int = 12) -> GroupBatch:
    generator = torch.Generator().manual_seed(3)
    if kind == "one tower":
        return GroupBatch({"image": torch.randn(count, 2, 3, 16, 16, generator=generator)}, [0, count])
    image = torch.randn(count, 1, 3, 16, 16, generator=generator)
    text = torch.randint(1, 128, (count, 1, 8), generator=generator)
    return GroupBatch({"image": image, "text": text}, [0, count])


def first(batch: GroupBatch, count: int) -> GroupBatch:
    return GroupBatch({name: view[:count] for name, view in batch.views.items()}, [0, count])


def config_for(kind: str, objective: str = "infonce", **bounding) -> Config:
    config = parse_config(
        {
            "model": MODELS[kind],
            "objective": {"learn_temperature": True},
            "bounding": {"method": "released", "microbatch": 5, **bounding},
        }
    )
    return config.model_copy(update={"objective": config.objective.model_copy(update={"name": objective})})


def plan_for(config: Config, **fields) -> PrivacyPlan:
    options = public_parameters(config)
    numbers = {"records": 60, "batch": 12, "group_size": 4, "steps": 10, "noise_multiplier": 0.8, "delta": 1e-5}
    return PrivacyPlan.of(**{**numbers, "clip_norm": 0.5, "method_name": "released", "options": options, **fields})


def engine_for(kind: str, statistics) -> tuple[torch.nn.Module, StatisticsEngine]:
    model = build_model(config_for(kind).model, config_for(kind).objective)
    return model, StatisticsEngine(model, "fp32", statistics)


def total(engine: StatisticsEngine, batch: GroupBatch, clip_norm: float) -> torch.Tensor:
    into = engine.zeros()
    engine.add_clipped(batch, clip_norm, into)
    return into.double()
