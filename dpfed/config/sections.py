"""The sections of a configuration: every key, its default, and a line that explains it.

A section that only one package uses is declared in that package: in `dpfed.data.options`, `dpfed.models.options`,
`dpfed.objectives`, `dpfed.training.options` or `dpfed.evaluation.options`. This module declares the other sections. A section
declares the allowed values of its keys, and for each key the values of its other keys under which the key has an effect.
Conditions between sections are in `dpfed.config.configuration`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from dpfed.data.options import DataConfig, PublicConfig, TextViewsConfig, ViewsConfig
from dpfed.evaluation.options import EvaluationConfig
from dpfed.models.options import AdaptationConfig, ModelConfig
from dpfed.objectives import ObjectiveConfig
from dpfed.privacy.method import METHODS, Method, method_named
from dpfed.privacy.plan_checks import wrong_clip_norm, wrong_stability
from dpfed.privacy.promise import Unit
from dpfed.schema.conditions import When, only
from dpfed.schema.section import Section
from dpfed.schema.wording import either
from dpfed.training.options import OptimizerConfig

__all__ = [
    "AdaptationConfig",
    "BoundingConfig",
    "DataConfig",
    "EvaluationConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "PrivacyConfig",
    "ProgressConfig",
    "PublicConfig",
    "Section",
    "TextViewsConfig",
    "TrainingConfig",
    "ViewsConfig",
]


def _of_method(holds: Callable[[Method], bool], why: str, choice: str = "") -> When:
    """Returns the condition that the chosen method reads certain keys.

    Args:
        holds: Predicate that tells whether a method reads the keys.
        why: Reason why a method does not read them.
        choice: Name of a method that reads them, to be suggested; empty: the error suggests all such methods.
    """

    def remedy() -> str:
        names = [choice] if choice else [name for name in METHODS if holds(method_named(name))]
        return f"{why}; set bounding.method = {either(names)}"

    return When("bounding.method", lambda bounding: holds(method_named(bounding.method)), remedy)


_CONTRASTS_GROUPS = _of_method(lambda method: not method.whole_batch, "this method contrasts the whole batch", "group")
_DRAWS_GROUPS = _of_method(lambda method: not method.singleton_groups, "every record forms its own group", "group")
_CAPPED = _of_method(lambda method: method.capped, "this method does not cap its batch")
_PICKS_ENGINE = _of_method(lambda method: method.picks_engine, "this method has its own engine")
_NOT_NORMALISED = When(
    "bounding.clipping",
    lambda bounding: bounding.clipping != "automatic",
    "every gradient is normalised; set bounding.clipping = 'fixed'",
)


class BoundingConfig(Section):
    """Settings that bound one record's influence on a step."""

    method: str = Field("group", description="what is clipped; 'none': no privacy at all (docs/methods.md lists all methods)")
    group_size: Annotated[int, _CONTRASTS_GROUPS, _DRAWS_GROUPS] = Field(
        16, description="S: expected number of records in a group"
    )
    clip_norm: Annotated[float, _NOT_NORMALISED] = Field(1.0, description="C: the largest L2 norm of a gradient after clipping")
    clipping: Literal["fixed", "automatic", "adaptive"] = Field(
        "fixed",
        description="fixed: clip to clip_norm; automatic: normalise, with no C to tune; adaptive: C follows a quantile of "
        "the gradient norms, which progress.quantile sets",
    )
    stability: Annotated[float, only("bounding.clipping", "automatic")] = Field(
        0.01, description="clipping = 'automatic': constant added to the norm by which a gradient is divided"
    )
    max_group_size: Annotated[int | None, _CONTRASTS_GROUPS, _DRAWS_GROUPS] = Field(
        None, description="largest number of records in a group; further ones are dropped; default: no limit"
    )
    max_batch: Annotated[int | None, _CAPPED] = Field(
        None, ge=2, description="methods batch, sample and logit: largest number of records in a batch; default B + 4 sqrt(B)"
    )
    options: dict[str, bool | int | float | str] = Field({}, description="the method's own options (docs/methods.md)")
    engine: Annotated[Literal["auto", "loop", "layerwise"], _PICKS_ENGINE] = Field(
        "auto",
        description="how group gradients are computed: 'loop', group by group; 'layerwise', several groups in one pass; "
        "'auto', layerwise where it fits the model",
    )
    microbatch: int = Field(512, ge=1, description="number of records whose views are in memory at a time")
    pass_records: Annotated[int | None, _PICKS_ENGINE] = Field(
        None,
        ge=8,
        le=65_536,
        description="layerwise: number of records in one forward and backward pass; default: what the GPU's memory allows; on "
        "a CPU, 32",
    )

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        if method not in METHODS:
            raise ValueError(f"expected one of {', '.join(METHODS)}")
        return method

    @field_validator("clip_norm", "stability")
    @classmethod
    def _meant(cls, value: float, key: ValidationInfo) -> float:
        if wrong := wrong_clip_norm(value) if key.field_name == "clip_norm" else wrong_stability(value):
            raise ValueError(wrong)
        return value


class PrivacyConfig(Section):
    """The privacy guarantee. Give `epsilon` (the noise is calibrated to it) or `noise_multiplier` (epsilon follows from it)."""

    epsilon: float | None = Field(None, description="the guarantee for the whole run: smaller is more private and noisier")
    noise_multiplier: float | None = Field(
        None, description="sigma: standard deviation of the noise, divided by the sensitivity"
    )
    delta: float | None = Field(None, description="delta of the guarantee; default 1/(N ln N)")
    noise: Literal["gaussian", "discrete"] = Field(
        "gaussian", description="gaussian: fast, in floating point; discrete: the proof also covers the rounding of numbers"
    )
    accountant: Literal["pld", "rdp"] = Field(
        "pld", description="how epsilon is computed; pld is tighter, rdp is used in the papers"
    )
    unit: Unit = Field("record", description="what is protected: a record, or all records of one unit")
    per_unit: Annotated[int, only("privacy.unit", "user")] = Field(
        1, ge=1, description="unit = 'user': largest number of a unit's records that take part in a step"
    )
    batch: int = Field(
        1024, description="B: expected number of records (or units) in a step; each is drawn with probability q = B/N"
    )
    steps: int = Field(100, description="T: number of noisy steps in the whole run")
    not_covered: str | None = Field(
        None, description="under a lifetime budget: justification for releases that it does not count (docs/budget.md)"
    )
    seed: int | None = Field(
        None, description="for tests only: anyone can compute the noise from a seed, so no guarantee holds"
    )


class TrainingConfig(Section):
    """Settings of the training process: device, precision and checkpoints."""

    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="auto: a GPU if there is one")
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="precision of the forward pass; bf16 requires the loop or the layerwise engine"
    )
    checkpoint_every: int | None = Field(
        None, ge=1, description="steps between two checkpoints; default: a fifth of the run, and at most 50"
    )
    keep: int = Field(2, ge=1, description="number of checkpoints to keep, the newest ones")
    commit_every: int | None = Field(
        None,
        ge=1,
        description="largest number of steps that are charged in one write; a crash loses the work of at most that many steps, "
        "and spends no budget on them; default: the steps of about ten seconds",
    )

    def checkpointed(self, steps: int) -> int:
        """Returns the number of steps between two checkpoints of a run of `steps` steps."""
        return self.checkpoint_every or max(1, min(50, steps // 5))


class ProgressConfig(Section):
    """Settings of the noisy training metrics that `diagnostics = 'private'` releases. Epsilon covers them."""

    share: float = Field(
        0.01,
        ge=1e-6,
        lt=1,
        description="fraction of each step's privacy cost (1 / sigma^2) spent on the noisy training metrics",
    )
    phase: int | None = Field(
        None, ge=1, description="number of steps over which a figure is averaged; default: as many as the noise requires"
    )
    quantile: float = Field(0.5, ge=0.01, le=0.99, description="tracked quantile of the groups' gradient norms")
    loss_range: float | None = Field(
        None, ge=1e-6, le=1e6, description="per-record losses are clipped to this value; default: twice the chance-level loss"
    )
