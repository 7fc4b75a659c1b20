"""What may be chosen about the optimizer: a section of a configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpfed.schema.conditions import When, only
from dpfed.schema.section import Section

_WARMS_UP = When(
    "optimizer.warmup optimizer.schedule",
    lambda optimizer: optimizer.warmup != 1 or optimizer.schedule != "constant",
    "the first step has the full learning rate then; give 2 or more",
)


class OptimizerConfig(Section):
    """How the noisy gradient updates the weights (post-processing: costs no privacy)."""

    name: Literal["sgd", "adam", "adamw", "lars"] = Field("adam", description="how the noisy gradient becomes a step")
    learning_rate: float = Field(1e-3, ge=1e-12, le=1e9, description="size of a step, at the end of the warm-up")
    momentum: Annotated[float, only("optimizer.name", "sgd", "lars")] = Field(0.9, ge=0, lt=1, description="for sgd and lars")
    weight_decay: float = Field(
        0.0, ge=0, le=1, description="this fraction of the weights is added to the gradient; adamw: decoupled from it"
    )
    warmup: Annotated[int, _WARMS_UP] = Field(0, ge=0, description="steps of linear warm-up")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="learning rate after the warm-up; cosine ends near 0"
    )
    ema: float = Field(0.0, ge=0, lt=1, description="decay of the weights' moving average; 0 is off")

    @model_validator(mode="after")
    def _decays(self) -> OptimizerConfig:
        taken = self.learning_rate * self.weight_decay
        if self.name in ("sgd", "adamw") and taken > 1:
            raise ValueError(
                f"learning_rate times weight_decay is what a step of {self.name} takes away from the weights, expected at most "
                f"1, got {taken:g}: lower weight_decay"
            )
        return self
