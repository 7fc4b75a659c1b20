"""What the numbers of a plan may be, and the sentences that refuse all others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfed.errors import UserError
from dpfed.privacy import accounting
from dpfed.privacy.method import METHODS, method_named
from dpfed.privacy.promise import round_up

if TYPE_CHECKING:
    from dpfed.privacy.plan import PrivacyPlan

MOST_RECORDS, MOST_STEPS = 10**12, 10**9  # beyond these, accounting in numbers of 64 bits means nothing
LEAST_EPSILON = 1e-3  # losses are added up on a grid of 1e-5 at best
# Of new plans; that of a file is taken as it is. Nobody means less: a gradient so short is hardly more than rounding.
CLIP_NORMS, STABILITIES = (1e-5, 1e9), (1e-4, 1e9)
_MOST_DISCRETE = 1e3
_PROGRESS = {"share", "quantile", "loss_range", "phase"}
WHOLE, NUMBER = "a whole number", "a number"
NUMBERS = (  # field, what it must be, whether it may be None
    ("records", WHOLE, False),
    ("batch", WHOLE, False),
    ("group_size", WHOLE, False),
    ("clip_norm", NUMBER, False),
    ("steps", WHOLE, False),
    ("noise_multiplier", NUMBER, False),
    ("delta", NUMBER, False),
    ("max_group_size", WHOLE, True),
    ("target_epsilon", NUMBER, True),
    ("per_unit", WHOLE, False),
    ("max_batch", WHOLE, True),
    ("stability", NUMBER, False),
)


def check(plan: PrivacyPlan) -> None:
    """Refuses numbers that cannot describe a plan, whatever its method makes of them.

    Raises:
        UserError: naming the number, what it is and what it may be.
    """
    _check_method(plan)
    require_within("the number of training records (or units)", plan.records, 2, MOST_RECORDS)
    usual = min(plan.records, max(plan.group_size, plan.records // 10))  # a tenth: far from all, and enough to contrast
    require_within("batch", plan.batch, 1, plan.records, " (the training records)", f"--set privacy.batch={usual}")
    if not plan.method.whole_batch:
        require_within("group_size", plan.group_size, 1, plan.batch, " (the expected batch)")
    require(
        positive(plan.clip_norm) and 1e-9 <= plan.clip_norm <= 1e9,
        f"clip_norm must be positive, between 1e-9 and 1e9, got {plan.clip_norm}",
    )
    require_within("steps", plan.steps, 1, MOST_STEPS)
    _check_noise(plan)
    _check_clipping(plan)
    require(0 < plan.delta < 1, f"delta must lie strictly between 0 and 1, got {plan.delta}")
    target = plan.target_epsilon
    require(target is None or positive(target), f"target_epsilon must be positive and finite, got {target}")
    if plan.max_group_size is not None:
        require_within("max_group_size", plan.max_group_size, 2)
    require(
        not plan.shares or (plan.batch == plan.records and plan.steps == len(plan.shares)),
        f"with method '{plan.method_name}' every record takes part in each of {len(plan.shares)} steps, so batch must be the "
        f"{plan.records:,} training records and steps {len(plan.shares)}, got {plan.batch} and {plan.steps}",
    )
    require_within("per_unit", plan.per_unit, 1)
    require(plan.unit in ("record", "user"), f"unit must be 'record' or 'user', got {plan.unit!r}")
    require(
        plan.unit == "user" or plan.per_unit == 1,
        f"per_unit = {plan.per_unit} is for privacy.unit = 'user'; leave it out where each record is protected",
    )


def _check_method(plan: PrivacyPlan) -> None:
    name = plan.method_name
    require(name in METHODS, f"method must be one of {', '.join(METHODS)}, got {name!r}")
    require(isinstance(plan.options, dict), f"options must be a dictionary, got {plan.options!r}")
    for key, value in plan.options.items():
        require(not isinstance(value, float) or math.isfinite(value), f"options.{key} must be finite, got {value}")
    if plan.method.capped:
        require(
            plan.max_batch is not None and plan.max_batch >= max(2, plan.batch),
            f"method '{name}' contrasts the whole batch and needs a cap, max_batch, of at least the expected batch "
            f"{plan.batch}, got {plan.max_batch}",
        )
    else:
        require(plan.max_batch is None, f"max_batch is a cap that method '{name}' does not need: leave it out")
    require(
        not plan.method.alone or (plan.group_size == 1 and plan.max_group_size is None),
        f"every record makes a group of its own with method '{name}': group_size must be 1, and there is no max_group_size",
    )
    require(
        not plan.method.whole_batch or plan.max_group_size is None,
        f"max_group_size is for groups, and method '{name}' has none",
    )
    require(
        plan.method.units or plan.unit == "record",
        f"the sensitivity of method '{name}' is for single records: privacy.unit = 'user' needs 'group', 'batch' or 'public'",
    )


def _check_noise(plan: PrivacyPlan) -> None:
    sigma = plan.noise_multiplier
    if not plan.private:
        require(sigma == 0, f"without privacy there is no noise, so noise_multiplier must be 0, got {sigma}")
        return
    require(
        positive(sigma) and sigma >= accounting.LEAST_NOISE,
        f"noise_multiplier must be at least {accounting.LEAST_NOISE} (less leaves no promise), got {sigma}",
    )
    require(
        sigma <= accounting.MOST_NOISE,
        f"noise_multiplier must be at most {accounting.MOST_NOISE:g} (more leaves nothing to learn), got {sigma}",
    )
    require(plan.noise_kind in ("gaussian", "discrete"), f"noise must be 'gaussian' or 'discrete', got {plan.noise_kind!r}")
    if plan.noise_kind == "discrete":
        proven = [name for name in METHODS if method_named(name).proven_in_floats]
        require(
            plan.method.proven_in_floats,
            f"noise = 'discrete' promises what is proven for floating point, too, which method '{plan.method_name}' is not: "
            f"use noise = 'gaussian', or one of the methods {', '.join(proven)}",
        )
        require(
            sigma <= _MOST_DISCRETE,
            f"with noise = 'discrete' noise_multiplier must be at most {_MOST_DISCRETE:g} (the grid grows with it, and "
            f"rounding would cost more than 3 %), got {sigma}",
        )


def _check_clipping(plan: PrivacyPlan) -> None:
    rule, progress = plan.clipping, plan.progress
    require(rule in ("fixed", "automatic", "adaptive"), f"clipping must be 'fixed', 'automatic' or 'adaptive', got {rule!r}")
    require(isinstance(progress, dict), f"progress must be a dictionary, got {progress!r}")
    wanted = f"clipping = '{rule}'" if rule != "fixed" else "diagnostics = 'private'"
    if rule != "fixed" or progress:
        measured = [name for name in METHODS if method_named(name).measured]
        require(
            plan.private,
            f"{wanted} has nothing to do without privacy (method '{plan.method_name}'): leave it out"
            + (", or set diagnostics = 'raw'" if progress else ""),
        )
        require(
            plan.method.measured,
            f"{wanted} is proven for the methods {', '.join(measured)}, whose groups have a clipped gradient each, and not for "
            f"'{plan.method_name}'",
        )
    fits = positive(plan.stability) if rule == "automatic" else plan.stability == 0
    require(fits, f"stability must be positive with clipping = 'automatic', and 0 otherwise, got {plan.stability}")
    require(
        rule != "adaptive" or bool(progress),
        "clipping = 'adaptive' follows a quantile of the gradients' norms, which has to be released: set "
        "diagnostics = 'private'",
    )
    if not progress:
        return
    require(set(progress) == _PROGRESS, f"progress must hold {', '.join(sorted(_PROGRESS))}, got {progress}")
    for name in ("share", "quantile"):
        value = plain_number(f"progress.{name}", NUMBER, progress[name])
        require(0 < value < 1, f"progress.{name} must lie strictly between 0 and 1, got {value}")
    value = plain_number("progress.loss_range", NUMBER, progress["loss_range"])
    require(positive(value), f"progress.loss_range must be positive, got {value}")
    if progress["phase"] is not None:
        steps = plain_number("progress.phase", WHOLE, progress["phase"])
        require_within("progress.phase", steps, 1, plan.steps, " (the steps)")


def refuse_unmeant_bounds(plan: PrivacyPlan) -> None:
    """Refuses a clip norm or a stability that nobody means, of new plans only: that of a file is taken as it is.

    Raises:
        UserError: saying what it may be, and what to begin with.
    """
    wrong = wrong_clip_norm(plan.clip_norm)
    require(not wrong, f"clip_norm: {wrong}; got {plan.clip_norm:g}")
    wrong = wrong_stability(plan.stability) if plan.clipping == "automatic" else ""
    require(not wrong, f"stability: {wrong}; got {plan.stability:g}")


def wrong_clip_norm(value: float) -> str:
    """What is expected instead of a clip norm that nobody means; empty: nothing is wrong."""
    return _beyond(value, CLIP_NORMS, "begin with 1, or with 0.1 to 0.01 for an image-text model")


def wrong_stability(value: float) -> str:
    """What is expected instead of a stability that nobody means; empty: nothing is wrong."""
    return _beyond(value, STABILITIES, "begin with the default, 0.01")


def _beyond(value: float, limits: tuple[float, float], advice: str) -> str:
    return "" if limits[0] <= value <= limits[1] else f"expected {limits[0]:g} to {limits[1]:g} ({advice})"


def refuse_large_delta(plan: PrivacyPlan) -> None:
    """Refuses a delta above 1/N, of new plans only: that of a file is taken as it is, and its card says so."""
    require(
        not plan.delta_exceeds_reciprocal,
        f"delta = {round_up(plan.delta)} is more than 1/N (N = {plan.records:,}), and whoever published one whole "
        f"{plan.protected}, drawn at random, would keep such a promise; leave delta out for the default, 1/(N ln N), "
        "or give less than 1/N",
    )


def default_delta_of(records: int) -> float:
    """The default, also of a number of records that no plan can have (which is refused for that)."""
    return accounting.default_delta(min(max(records, 2), MOST_RECORDS))


def plain_number(name: str, kind: str, value: Any) -> Any:
    """A number of the kind that is wanted; one of an array becomes Python's own, which can be written down."""
    if isinstance(value, np.generic):
        value = value.item()
    right = isinstance(value, int | float if kind == NUMBER else int) and not isinstance(value, bool)
    require(right, f"{name} must be {kind}, got {value!r}")
    return value


def positive(value: float) -> bool:
    """Whether a number is above 0 and finite."""
    return 0 < value < math.inf


def require_epsilon(name: str, value: float) -> None:
    """Refuses an epsilon that is no promise, or one so small that accounting cannot tell it from none at all."""
    require(
        positive(value) and value >= LEAST_EPSILON,
        f"{name} must be positive, at least {LEAST_EPSILON:g} (noise for less leaves nothing to learn), got {value}",
    )


def require_within(name: str, value: int, least: int, most: int | None = None, which: str = "", command: str = "") -> None:
    """Refuses what is too small or too large; `command`: see `require`."""
    expected = f"be at least {least}" if most is None else f"lie in {least}..{most:,}{which}"
    require(least <= value and (most is None or value <= most), f"{name} must {expected}, got {value!r}", command)


def require(condition: bool, message: str, command: str = "") -> None:
    """Refuses a plan, unless the condition holds.

    Args:
        condition: that must hold.
        message: what must be, and what is.
        command: an option of the command line that helps.

    Raises:
        UserError: with the message.
    """
    if not condition:
        raise UserError(f"impossible plan: {message}.", command=f"Try {command}." if command else "")
