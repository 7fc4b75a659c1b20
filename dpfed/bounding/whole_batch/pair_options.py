"""What the methods that reweight similarities, `sample` and `logit`, ask of a configuration, and their options."""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from dpfed.config import Config, Section, first_problem
from dpfed.errors import UserError


class PairOptions(Section):
    """``[bounding.options]`` of `sample`."""

    norms: Literal["auto", "exact", "bound"] = Field("auto", description="gradient norms, or bounds by the triangle inequality")


class LogitOptions(PairOptions):
    """``[bounding.options]`` of `logit`."""

    one_sided: bool = Field(False, description="only the first views are anchors, as in the paper: half the sensitivity")
    spread_out: float = Field(0.0, ge=0, description="weight of the spread-out regulariser")


Options = TypeVar("Options", bound=PairOptions)


def options_of(config: Config, kind: type[Options]) -> Options:
    """The options of a configuration whose loss these methods can bound.

    Args:
        config: of the run.
        kind: the options of its method.

    Raises:
        UserError: for an option that the method does not have, or a value that it cannot have; for another objective than
            InfoNCE, a learnt temperature, or a precision in which norms and gradients would differ too much.
    """
    method = config.bounding.method
    if config.objective.name != "infonce":
        raise UserError(
            f"bounding.method = '{method}' is for a sum over anchors of a function of cosines: set objective.name = 'infonce', "
            f"got '{config.objective.name}'."
        )
    if config.objective.learn_temperature:
        raise UserError(
            f"bounding.method = '{method}' bounds gradients of cosines, which a learnt temperature is not part of: set "
            "objective.learn_temperature = false."
        )
    if config.training.precision != "fp32":
        raise UserError(
            f"bounding.method = '{method}' computes norms apart from gradients, and in {config.training.precision} the two "
            "differ too much: set training.precision = 'fp32'."
        )
    try:
        return kind.model_validate(config.bounding.options)
    except ValidationError as error:
        raise UserError(f"bounding.options of method '{method}': {first_problem(error)}.") from None
