"""What the numbers of a plan may be, and the sentences that refuse all others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfed.errors import UserError
from dpfed.privacy import accounting
from dpfed.privacy.promise import round_up

if TYPE_CHECKING:
    from dpfed.privacy.plan import PrivacyPlan

MOST_RECORDS, MOST_STEPS = 10**12, 10**9  # beyond these, accounting in numbers of 64 bits means nothing
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
)


def refuse_large_delta(plan: PrivacyPlan) -> None:
    """Refuses a delta above 1/N, of new plans only: one that was made before must still open, and its card says so."""
    require(
        not plan.delta_exceeds_reciprocal,
        f"delta = {round_up(plan.delta)} is more than 1/N (N = {plan.records:,}), and whoever published one whole {plan.unit}, "
        "drawn at random, would keep such a promise; leave delta out for the default, 1/(N ln N), or give less than 1/N",
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


def require_within(name: str, value: int, least: int, most: int | None = None, which: str = "") -> None:
    """Refuses what is too small or too large."""
    expected = f"be at least {least}" if most is None else f"lie in {least}..{most:,}{which}"
    require(least <= value and (most is None or value <= most), f"{name} must {expected}, got {value!r}")


def require(condition: bool, message: str) -> None:
    """Refuses a plan, unless the condition holds.

    Raises:
        UserError: with the message.
    """
    if not condition:
        raise UserError(f"impossible plan: {message}.")
