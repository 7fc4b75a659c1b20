"""What epsilon and delta promise, in words that the numbers allow: the one place that words a promise.

An (epsilon, delta) promise about one record: whatever set of results one looks at, its probability with the record is at most
e^epsilon times that without it, plus delta, and the other way round.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal
from typing import Literal

Unit = Literal["record", "user"]  # what is added or removed between neighbours

# Up to `CLOSE` no guess is right in more than 73.2 % of cases; beyond `LIMITED` a bound of 99.3 % says little by itself.
CLOSE, LIMITED = 1.0, 5.0


def protected_by(unit: str) -> str:
    """What one of the things that a promise is about is called: ``record``, or ``unit``."""
    return "record" if unit == "record" else "unit"


def round_up(value: float) -> str:
    """A privacy loss for people: two decimals, or three significant digits when small or huge; never below its value."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    # repr() is the number that was meant: 1e-05, not the 1.00000000000000008e-05 that the machine holds.
    exact = Decimal(repr(float(value)))
    last = -2 if 0.1 <= value < 1e9 else exact.adjusted() - 2
    rounded = exact.quantize(Decimal(1).scaleb(last), rounding=ROUND_CEILING)
    if 1e-3 <= value < 1e9:
        return f"{rounded:f}"
    mantissa, _, exponent = f"{rounded:e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def round_down(value: float) -> str:
    """A lower bound of a privacy loss for people: two decimals, never above its value."""
    return f"{math.floor(value * 100) / 100:.2f}" if math.isfinite(value) else f"{value:g}"


def factor(epsilon: float) -> str:
    """e^epsilon, never below its value: how many times as likely a result can become by one record."""
    if epsilon > 15:
        return f"10^{_ceiling(epsilon / math.log(10), 1):.1f}"
    times = math.exp(epsilon)
    return f"{_ceiling(times, 0):,.0f}" if times >= 100 else f"{_ceiling(times, 2):.2f}"


def guess(epsilon: float, delta: float) -> str:
    """Most that any test between two neighbouring data sets gets right from even odds, in percent, never below its value."""
    # (e^epsilon + delta) / (e^epsilon + 1), written so that no exponential overflows.
    share = (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    # More digits as certainty nears, so that 99.97 % is not printed as 100.
    digits = 2 if share <= 0.9998 else 4 if share <= 0.999998 else 0
    return f"{min(100.0, _ceiling(100 * share, digits)):.{digits}f} %"


def percent_up(share: float) -> str:
    """A share that bounds something from above, in percent with one decimal, never below its value."""
    return f"{min(100.0, _ceiling(100 * share, 1)):.1f}%"


def meaning(epsilon: float, delta: float, one: str = "record", released: str = "what is released") -> str:
    """What a promise of (epsilon, delta) says and what it does not, for readers without mathematics: one of three wordings.

    Args:
        epsilon: at least 0; infinity promises nothing.
        delta: its companion.
        one: what is protected, such as ``record`` or ``person``.
        released: what the promise is about.
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
    """What must be said first where delta is above 1/N; empty where it is not.

    A mechanism that publishes every record outright with probability delta keeps (0, delta).

    Args:
        delta: of the promise.
        count: N.
        one: what N counts.
    """
    if count < 1 or delta <= 1 / count:
        return ""
    return (
        f"Do not rely on this promise: its delta of {round_up(delta)} is larger than 1/N = 1/{count:,}. A program that "
        f"publishes every {one} outright with that probability would keep the same promise."
    )


def of_several(epsilon: float, delta: float, count: int) -> tuple[float, float] | None:
    """What one promise is worth for somebody with so many records; ``None``: nothing, as delta comes to 1.

    Basic group privacy: epsilon times m, delta times (e^(m epsilon) - 1) / (e^epsilon - 1).
    """
    try:
        together = delta * (float(count) if epsilon == 0 else math.expm1(count * epsilon) / math.expm1(epsilon))
    except OverflowError:
        together = math.inf if delta else 0.0
    return None if together >= 1 else (count * epsilon, together)


def _ceiling(value: float, decimals: int) -> float:
    return math.ceil(value * 10**decimals) / 10**decimals
