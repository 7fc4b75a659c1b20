"""What the methods that reweight similarities, `sample` and `logit`, ask of a configuration, and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dpfed.errors import UserError
from dpfed.schema.section import Section

if TYPE_CHECKING:
    from dpfed.config import Config


class PairOptions(Section):
    """``[bounding.options]`` of `sample`."""

    norms: Literal["auto", "exact", "bound"] = Field("auto", description="gradient norms, or bounds by the triangle inequality")


class LogitOptions(PairOptions):
    """``[bounding.options]`` of `logit`."""

    one_sided: bool = Field(False, description="only the first views are anchors, as in the paper: half the sensitivity")
    spread_out: float = Field(0.0, ge=0, description="weight of the spread-out regulariser")


def refuse_unbounded(config: Config) -> None:
    """Refuses what these methods cannot bound: both are for a sum over anchors of a function of cosines, as InfoNCE is.

    Args:
        config: of the run.

    Raises:
        UserError: for a learnt temperature, or a precision in which norms and gradients would differ too much.
    """
    method = config.bounding.method
    if config.objective.learn_temperature:
        raise UserError(
            f"bounding.method = '{method}' bounds gradients of cosines, but not that of a learnt temperature: set "
            "objective.learn_temperature = false."
        )
    if config.training.precision != "fp32":
        raise UserError(
            f"bounding.method = '{method}' computes norms apart from gradients, and in {config.training.precision} the two "
            "differ too much: set training.precision = 'fp32'."
        )
