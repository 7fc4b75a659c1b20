"""The ``[optimizer]`` section of a configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dpfed.errors import nearest
from dpfed.schema.conditions import When, only
from dpfed.schema.named import Arguments, is_name
from dpfed.schema.section import Section

_WARMS_UP = When(
    "optimizer.warmup optimizer.schedule",
    lambda optimizer: optimizer.warmup != 1 or optimizer.schedule != "constant",
    "after a warm-up of one step, the first step already has the full learning rate; set optimizer.warmup to 2 or more",
)


_NAMES = ("sgd", "adam", "adamw", "lars")
_OWN = When("optimizer.name", lambda optimizer: optimizer.is_own, "set optimizer.name = 'package.module:Optimizer'")


class OptimizerConfig(Section):
    """Settings that say how the noisy gradient updates the weights. The update is post-processing and costs no privacy."""

    name: str = Field(
        "adam",
        description="how the noisy gradient becomes a step: 'sgd', 'adam', 'adamw', 'lars', or 'package.module:Optimizer', "
        "such as 'torch.optim:RAdam'",
    )
    options: Annotated[Arguments, _OWN] = Field(
        {}, description="further arguments, if optimizer.name = 'package.module:Optimizer'"
    )
    learning_rate: float = Field(1e-3, ge=1e-12, le=1e9, description="size of a step, at the end of the warm-up")
    momentum: Annotated[float, only("optimizer.name", "sgd", "lars")] = Field(
        0.9, ge=0, lt=1, description="fraction of the last step's direction that sgd and lars keep"
    )
    weight_decay: float = Field(
        0.0,
        ge=0,
        le=1,
        description="fraction of the weights that is added to the gradient; with adamw, decoupled weight decay; with "
        "'package.module:Optimizer', 0 means that optimizer's own default, which may be above 0",
    )
    warmup: Annotated[int, _WARMS_UP] = Field(0, ge=0, description="number of steps of linear warm-up")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="course of the learning rate after the warm-up; 'cosine' falls to almost 0"
    )
    ema: float = Field(0.0, ge=0, lt=1, description="decay of the weights' moving average; 0 is off")

    @property
    def is_own(self) -> bool:
        """Returns whether `name` is an import path, so that the optimizer is another library's or the user's own."""
        return is_name(self.name)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in _NAMES and not is_name(name):
            raise ValueError(
                f"expected one of {', '.join(_NAMES)}, or a name such as torch.optim:RAdam; {nearest(name, _NAMES)}"
            )
        return name

    @model_validator(mode="after")
    def _decays(self) -> OptimizerConfig:
        for given, key in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
            if given in self.options:
                raise ValueError(f"options.{given} has the same meaning as optimizer.{key}: set optimizer.{key} instead")
        taken = self.learning_rate * self.weight_decay
        if self.name in ("sgd", "adamw") and taken > 1:
            raise ValueError(
                f"a step of {self.name} removes the fraction learning_rate * weight_decay of the weights, expected at most 1, "
                f"got {taken:g}: lower weight_decay"
            )
        return self
