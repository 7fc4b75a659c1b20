"""Makes the engines of the methods for comparison. `MAKERS` has one function for each method."""

from __future__ import annotations

from collections.abc import Mapping

from dpfed.baselines.methods.released import release_multiplier
from dpfed.baselines.noisy_statistics.published_dpcl import PublishedMoments, PublishedSimilarity
from dpfed.baselines.noisy_statistics.record_gradients import Statistics, StatisticsEngine
from dpfed.baselines.noisy_statistics.released_embeddings import ReleasedEmbeddings, ReleasedMoments, release_noise
from dpfed.baselines.whole_batch.pair_engines import LogitEngine, SampleEngine
from dpfed.bounding.engines import Engine
from dpfed.bounding.engines.by_method import EngineInputs, MakeEngine
from dpfed.privacy.noise import KeyedNoise


def _sample(given: EngineInputs) -> Engine:
    return SampleEngine(given.model, given.plan.bounding.whole_batch_cap, given.options.norms)


def _logit(given: EngineInputs) -> Engine:
    return LogitEngine(given.model, given.plan.bounding.whole_batch_cap, **given.options.model_dump())


def _released(given: EngineInputs) -> Engine:
    plan = given.plan

    def noise(sensitivity: float) -> KeyedNoise:
        return release_noise(given.randomness, release_multiplier(plan.parameters) * sensitivity, given.rank, plan.fingerprint)

    statistics: ReleasedEmbeddings | ReleasedMoments
    if given.loss_name == "infonce":
        of_embeddings = noise(ReleasedEmbeddings.SENSITIVITY)
        statistics = ReleasedEmbeddings(plan.bounding.options["slots"], plan.sampling.batch, of_embeddings, given.randomness)
    else:
        of_moments = noise(ReleasedMoments.SENSITIVITY)
        statistics = ReleasedMoments(plan.sampling.batch, of_moments, given.loss_options.redundancy)
    return StatisticsEngine(given.model, given.precision, statistics)


def _dpcl(given: EngineInputs) -> Engine:
    return StatisticsEngine(given.model, given.precision, _published_statistics(given), by_view=True)


def _published_statistics(given: EngineInputs) -> Statistics:
    plan, batch = given.plan, given.plan.sampling.batch

    def noise(sensitivity: float, context: str) -> KeyedNoise:
        std = plan.noise.multiplier * sensitivity
        return release_noise(given.randomness, std, given.rank, f"{plan.fingerprint}/{context}")

    if given.loss_name == "infonce":
        of_similarity = noise(PublishedSimilarity.sensitivity(batch, given.reads_text), "similarity")
        return PublishedSimilarity(given.reads_text, of_similarity)
    return PublishedMoments(
        noise(PublishedMoments.mean_sensitivity(batch), "mean"),
        noise(PublishedMoments.SCATTER_SENSITIVITY, "scatter"),
        given.loss_options.redundancy,
    )


MAKERS: Mapping[str, MakeEngine] = {"dpcl": _dpcl, "logit": _logit, "released": _released, "sample": _sample}
