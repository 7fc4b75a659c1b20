"""Checks a plan's numbers, and raises errors for those outside their allowed ranges."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

import numpy as np

from dpfed.errors import UserError

_USUAL_GROUP = 16
MOST_RECORDS, MOST_STEPS = 10**12, 10**9  # beyond these, accounting with 64-bit numbers is meaningless
LEAST_EPSILON = 1e-3  # the grid on which privacy losses are composed has an interval of 1e-5 at best
# Plausible ranges in new plans; a plan from a file is accepted unchanged. Gradients with norms below the range are hardly more
# than rounding errors. A clip norm far above the norm of every gradient buries the gradients in noise.
CLIP_NORMS, STABILITIES = (1e-5, 1e6), (1e-4, 1e4)


def wrong_clip_norm(value: float) -> str:
    """Returns the expected range, in words, if a clip norm is implausible; an empty string if it is plausible."""
    return _beyond(value, CLIP_NORMS, "begin with 1, or with 0.1 to 0.01 for an image-text model")


def wrong_stability(value: float) -> str:
    """Returns the expected range, in words, if a stability is implausible; an empty string if it is plausible."""
    return _beyond(value, STABILITIES, "begin with the default, 0.01")


def _beyond(value: float, limits: tuple[float, float], advice: str) -> str:
    return "" if limits[0] <= value <= limits[1] else f"expected {limits[0]:g} to {limits[1]:g} ({advice})"


def plain_number(name: str, kind: type, value: Any) -> Any:
    """Returns a number of the expected kind; a NumPy scalar becomes a Python number, which can be written to a file.

    Args:
        name: Name of the number in the message.
        kind: Expected kind, `int` or `float`; where `float` is expected, an `int` is returned as it is.
        value: Value to check.

    Raises:
        UserError: If the value is not a number of this kind.
    """
    if isinstance(value, np.generic):
        value = value.item()
    right = isinstance(value, int | kind) and not isinstance(value, bool)
    require(right, f"{name} must be a {'whole ' * (kind is int)}number, got {value!r}")
    most = sys.float_info.max
    require(kind is int or not most < abs(value) < math.inf, f"{name} must be at most {most:.2g}, got a larger whole number")
    return value


def normalise_numbers(value: Any, prefix: str = "") -> None:
    """Converts the int and float fields of a new dataclass to plain numbers; error messages put `prefix` before their names.

    Raises:
        UserError: If a field holds no number of its kind.
    """
    for field in dataclasses.fields(value):
        given, (kind, *rest) = getattr(value, field.name), str(field.type).split(" | ")
        if kind in ("int", "float") and not (rest and given is None):
            number = plain_number(prefix + field.name, int if kind == "int" else float, given)
            object.__setattr__(value, field.name, number)


def positive(value: float) -> bool:
    """Returns whether a number is above 0 and finite."""
    return 0 < value < math.inf


def require_epsilon(name: str, value: float) -> None:
    """Refuses an epsilon that is not finite, or below `LEAST_EPSILON`, 0.001.

    Raises:
        UserError: If the epsilon is refused; the message calls it `name`.
    """
    require(
        positive(value) and value >= LEAST_EPSILON,
        f"{name} must be finite and at least {LEAST_EPSILON:g} (the noise of a smaller epsilon hides everything), got {value}",
    )


def require_batch(batch: int, records: int, group_size: int, least: int) -> None:
    """Refuses a batch that is empty or larger than the number of training records, and suggests a possible batch.

    Args:
        batch: Expected batch size, B.
        records: Number of training records (or units), N, or `MOST_RECORDS` if that number is not known yet.
        group_size: Expected group size in the configuration, S.
        least: Smallest batch that the message advises, because a contrast needs so many records. A smaller batch is refused
            only if it is empty.

    Raises:
        UserError: If the batch is empty or larger than N.
    """
    if records == MOST_RECORDS:
        require(batch >= 1, f"batch must be at least {least} (usually a tenth of the training records), got {batch}")
        return require(batch <= records, f"batch must be at most {records:,}, got {batch}")
    usual = max(min(_USUAL_GROUP, records), records // 10)  # far from all records, and enough to contrast
    usual = max(usual, min(group_size, records))
    command = f"--set privacy.batch={usual}"
    if group_size > usual:
        command += f" --set bounding.group_size={max(least, min(_USUAL_GROUP, usual) // 4)}"
    require_within("batch", batch, 1, records, " (the training records or units)", command, shown=min(least, records))


def require_within(
    name: str, value: int, least: int, most: int | None = None, which: str = "", command: str = "", shown: int | None = None
) -> None:
    """Refuses a number that is too small or too large.

    Args:
        name: Name of the number in the message.
        value: Number to check.
        least: Smallest allowed value.
        most: Largest allowed value; ``None`` if there is no limit.
        which: Explanation, in the message, of what `most` is.
        command: Option of the command line to suggest, see `require`.
        shown: Smallest value that the message advises; default: `least`.

    Raises:
        UserError: If the number is too small or too large.
    """
    advised = least if shown is None else shown
    expected = f"be at least {advised}" if most is None else f"lie in {advised}..{most:,}{which}"
    require(least <= value and (most is None or value <= most), f"{name} must {expected}, got {value!r}", command)


def require(condition: bool, message: str, command: str = "") -> None:
    """Refuses a plan, unless the condition holds.

    Args:
        condition: Condition that must hold.
        message: Text that states the requirement and the given value.
        command: Option of the command line to suggest; empty if there is no such option.

    Raises:
        UserError: If the condition does not hold.
    """
    if not condition:
        raise UserError(f"impossible plan: {message}. [plan-impossible]", command=f"Try {command}." if command else "")
