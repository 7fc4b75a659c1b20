"""Released statistics: noisy statistics of the batch, then one clipped gradient per record (what DPCL intended, made sound).

In each step the owner releases noisy statistics from which every other record enters a record's gradient: embeddings in M slots
for InfoNCE, moments for Barlow Twins. Given them, a record's loss depends on that record alone; its gradient is clipped to C.

**Sensitivity of the release.** One record more adds a pair of embeddings of at most unit length to one slot, sqrt(2), or a
vector of norm at most sqrt(5) to the moments. **Of the sum, given the release**: it adds one clipped gradient, **C**, and
changes no other. The batch has no cap: a record that pushes another one out would change two records' parts.

Both are Gaussian mechanisms on one Poisson sample, the second adaptive. With multipliers ``sigma / sqrt(share)`` and
``sigma / sqrt(1 - share)`` they are together dominated by one of multiplier sigma on that sample: for each outcome of
"the record is drawn", a sample of N(b / sigma, 1) can be turned into the pair of outputs without knowing b, and such a map
takes mixtures to mixtures. docs/methods.md has the proof in full.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dpfed.errors import UserError
from dpfed.privacy.method import Build, Method
from dpfed.schema.section import Section

if TYPE_CHECKING:
    from dpfed.bounding.engines import Engine
    from dpfed.config import Config
    from dpfed.privacy.noise import KeyedNoise
    from dpfed.privacy.plan import PrivacyPlan


class _Moments(Section):
    release_share: float = Field(0.5, gt=0, lt=1, description="of a step's 1 / sigma^2, what the release gets")


class _Slots(_Moments):
    release_share: float = Field(0.2, gt=0, lt=1, description="of a step's 1 / sigma^2, what the release gets")
    slots: int = Field(64, ge=2, description="M, in which the embeddings of a batch are released")


def _numbers(config: Config, options: _Moments) -> dict[str, Any]:
    refuse_augmentations(config)
    return options.model_dump()


def refuse_augmentations(config: Config) -> None:
    """Two views of a record are contrasted, and further ones would be made for nothing.

    Raises:
        UserError: if there are further ones.
    """
    if config.objective.augmentations:
        raise UserError(
            f"bounding.method = '{config.bounding.method}' contrasts two views of a record: set objective.augmentations to 0, "
            f"got {config.objective.augmentations}."
        )


def release_multiplier(plan: PrivacyPlan) -> float:
    """Noise of the release over its sensitivity."""
    return plan.noise_multiplier / math.sqrt(plan.options["release_share"])


def _engine(build: Build) -> Engine:
    from dpfed.baselines.noisy_statistics.record_gradients import StatisticsEngine
    from dpfed.baselines.noisy_statistics.released_embeddings import ReleasedEmbeddings, release_noise
    from dpfed.baselines.noisy_statistics.released_moments import ReleasedMoments

    plan, config = build.plan, build.config

    def noise(sensitivity: float) -> KeyedNoise:
        return release_noise(build.randomness, release_multiplier(plan) * sensitivity, build.owner, plan.fingerprint)

    statistics: ReleasedEmbeddings | ReleasedMoments
    if config.objective.name == "infonce":
        of_embeddings = noise(ReleasedEmbeddings.SENSITIVITY)
        statistics = ReleasedEmbeddings(plan.options["slots"], plan.batch, of_embeddings, build.randomness)
    else:
        statistics = ReleasedMoments(plan.batch, noise(ReleasedMoments.SENSITIVITY), config.objective.redundancy)
    return StatisticsEngine(build.model, config.training.precision, statistics)


METHOD = Method(
    name="released",
    title="released statistics (DPCL, made sound)",
    claim="Noisy statistics of the batch are released first; given them, each record's gradient is its own and is clipped: one "
    "record moves the sum by C. Release and sum are accounted for together.",
    sensitivity=lambda plan: plan.clip_norm,
    spread=lambda plan: 2 * plan.batch + 100,  # records: a Poisson batch is larger once in 10^60
    engine=_engine,
    whole_batch=True,
    divisor=lambda plan: plan.batch,
    gradient_share=lambda plan: 1 - plan.options["release_share"],
    options={"infonce": _Slots, "barlow_twins": _Moments},  # slots stay noisy at any share, so the gradient gets more
    numbers=_numbers,
)
