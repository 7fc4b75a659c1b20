"""States the meaning of epsilon and delta in words that the numbers justify. All wording of promises is in this module.

An (epsilon, delta) promise about one record: the probability of any set of results with the record is at most e^epsilon times
the probability without the record, plus delta, and vice versa.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal
from typing import Literal

Unit = Literal["record", "user"]  # the difference between neighbouring data sets

# Up to `CLOSE` no guess is right in more than 73.2 % of cases; beyond `LIMITED` the bound, 99.3 %, means little on its own.
CLOSE, LIMITED = 1.0, 5.0


def protected_by(unit: str) -> str:
    """Returns the word for what is protected: ``record``, or ``unit`` if the privacy unit is ``user``."""
    return "record" if unit == "record" else "unit"


def round_up(value: float) -> str:
    """Formats a privacy loss, rounded up: with two decimals, or with three significant digits if it is small or huge."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    # repr() gives the intended number: 1e-05, not the 1.00000000000000008e-05 that the float holds.
    exact = Decimal(repr(float(value)))
    last = -2 if 0.1 <= value < 1e9 else exact.adjusted() - 2
    rounded = exact.quantize(Decimal(1).scaleb(last), rounding=ROUND_CEILING)
    if 1e-3 <= value < 1e9:
        return f"{rounded:f}"
    mantissa, _, exponent = f"{rounded:e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def round_down(value: float) -> str:
    """Formats a lower bound of a privacy loss, rounded down to two decimals."""
    return f"{math.floor(value * 100) / 100:.2f}" if math.isfinite(value) else f"{value:g}"


def factor(epsilon: float) -> str:
    """Formats e^epsilon, rounded up: the factor by which one record can change the probability of a result."""
    if epsilon > 15:
        return f"10^{_ceiling(epsilon / math.log(10), 1):.1f}"
    times = math.exp(epsilon)
    return f"{_ceiling(times, 0):,.0f}" if times >= 100 else f"{_ceiling(times, 2):.2f}"


def guess(epsilon: float, delta: float) -> str:
    """Formats the largest accuracy, in percent, rounded up, with which a test can tell two neighbouring data sets apart.

    The results under test come from either data set with probability 1/2.
    """
    # (e^epsilon + delta) / (e^epsilon + 1), written so that no exponential overflows.
    share = (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    # More digits near certainty, so that 99.97 % is not printed as 100 %.
    digits = 2 if share <= 0.9998 else 4 if share <= 0.999998 else 0
    return f"{min(100.0, _ceiling(100 * share, digits)):.{digits}f} %"


def percent_up(share: float) -> str:
    """Formats a fraction that is an upper bound, in percent with one decimal, rounded up."""
    return f"{min(100.0, _ceiling(100 * share, 1)):.1f}%"


def meaning(epsilon: float, delta: float, one: str = "record", released: str = "what is released") -> str:
    """Explains a promise of (epsilon, delta) and its limits in words, for readers without mathematics.

    Args:
        epsilon: Epsilon of the promise, at least 0; an infinite epsilon promises nothing.
        delta: Delta of the promise.
        one: Word for one protected record or unit, such as ``record`` or ``person``.
        released: Words for the released results that the promise covers.
    """
    if not math.isfinite(epsilon):
        return f"No finite epsilon holds: nothing limits what {released} tells about any one {one}."
    shown = float(round_up(epsilon))
    bound = (
        f"Imagine somebody who knows everything except whether one particular {one} took part. By tossing a coin they are "
        f"right in 50 % of cases; after seeing {released}, in at most {guess(shown, delta)}, whatever they try."
    )
    if shown <= CLOSE:
        return f"{bound} So {released} tells little about any one {one}."
    if shown <= LIMITED:
        return f"{bound} That limits what can be learnt about one {one}. It does not rule out that something is learnt."
    return f"{bound} This promise alone is weak: they may find out. Attacks may find much less, but that is not promised."


def large_delta(delta: float, count: int, one: str = "record") -> str:
    """Returns the warning for a delta above 1/N; an empty string if delta is at most 1/N.

    A large delta promises little: a mechanism that publishes each record openly with probability delta keeps (0, delta).

    Args:
        delta: Delta of the promise.
        count: Number of protected records or units, N.
        one: Word for one protected record or unit, such as ``record`` or ``person``.
    """
    if count < 1 or delta <= 1 / count:
        return ""
    return (
        f"Do not rely on this promise: its delta of {round_up(delta)} is larger than 1/N = 1/{count:,}. A program that "
        f"publishes every {one} outright with that probability would keep the same promise."
    )


def of_several(epsilon: float, delta: float, count: int) -> tuple[float, float] | None:
    """Returns the promise (epsilon, delta) for somebody with `count` records; ``None`` if delta would be 1 or more.

    By basic group privacy, with m = `count`, epsilon is multiplied by m, and delta by (e^(m epsilon) - 1) / (e^epsilon - 1).
    """
    try:
        together = delta * (float(count) if epsilon == 0 else math.expm1(count * epsilon) / math.expm1(epsilon))
    except OverflowError:
        together = math.inf if delta else 0.0
    return None if together >= 1 else (count * epsilon, together)


def _ceiling(value: float, decimals: int) -> float:
    return math.ceil(value * 10**decimals) / 10**decimals
