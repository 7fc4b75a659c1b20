"""DPCL as published (Li et al. 2022), for comparison only: **not sound**.

Each step takes B records without replacement, releases a noisy similarity matrix (SimCLR) or noisy means and variances (Barlow
Twins), clips every view's gradient to C and adds them up. The paper states that replacing one record then moves the sum by at
most 4C, two views by 2C each, because the other views' gradients stay what they are once the noisy statistics are fixed.
They do not: they contain the replaced record's clean embedding (`dpfed.baselines.noisy_statistics.published_dpcl`). Every one
of the 2B clipped gradients can turn round, so the sum can move by up to 4BC. The 4C here is the paper's, and so is the claimed
epsilon: every release has noise multiplier sigma, and their Renyi epsilons, each for a sample without replacement (Wang et al.
2019), add up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpfed.baselines.methods.released import refuse_augmentations
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.method import Build, Method
from dpfed.privacy.parameters import MechanismParameters
from dpfed.privacy.samplers import FixedSizeSampler
from dpfed.schema.section import NoOptions

if TYPE_CHECKING:
    from dpfed.baselines.noisy_statistics.record_gradients import Statistics
    from dpfed.bounding.engines import Engine
    from dpfed.config import Config
    from dpfed.privacy.noise import KeyedNoise

# Noisy releases in a step, the gradient's among them: the similarities; or the mean and the variance of either view.
_RELEASES = {"infonce": 2, "barlow_twins": 5}


def _numbers(config: Config, options: NoOptions) -> dict[str, Any]:
    refuse_augmentations(config)
    return {"releases": _RELEASES[config.objective.name]}


def _statistics(build: Build) -> Statistics:
    from dpfed.baselines.noisy_statistics.published_dpcl import PublishedMoments, PublishedSimilarity
    from dpfed.baselines.noisy_statistics.released_embeddings import release_noise

    plan, config, batch = build.plan, build.config, build.plan.sampling.batch

    def noise(sensitivity: float, context: str) -> KeyedNoise:
        std = plan.noise.multiplier * sensitivity
        return release_noise(build.randomness, std, build.owner, f"{plan.fingerprint}/{context}")

    if config.objective.name == "infonce":
        two_towers = config.model.reads_text
        return PublishedSimilarity(two_towers, noise(PublishedSimilarity.sensitivity(batch, two_towers), "similarity"))
    return PublishedMoments(
        noise(PublishedMoments.mean_sensitivity(batch), "mean"),
        noise(PublishedMoments.SCATTER_SENSITIVITY, "scatter"),
        config.objective.redundancy,
    )


def _engine(build: Build) -> Engine:
    from dpfed.baselines.noisy_statistics.record_gradients import StatisticsEngine

    config = build.config
    return StatisticsEngine(build.model, config.training.precision, _statistics(build), by_view=True)


def _fixed_size(given: MechanismParameters) -> Mechanism:
    return Mechanism(FixedSizeSampler(given.records, given.batch), given.noise_multiplier, given.options["releases"])


METHOD = Method(
    name="dpcl",
    title="DPCL as published (unsound)",
    claim="Similarities, or means and variances, get noise; each view's gradient is clipped. The published claim is that the "
    "sum moves by 4C when one record is replaced; in fact every view's gradient may change.",
    sensitivity=lambda given: 4 * given.clip_norm,
    spread=lambda given: given.batch / 2,
    engine=_engine,
    sound=False,
    whole_batch=True,
    divisor=lambda given: given.batch,
    options=dict.fromkeys(_RELEASES, NoOptions),
    numbers=_numbers,
    accountants=("rdp",),
    mechanism=_fixed_size,
)
