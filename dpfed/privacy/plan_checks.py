"""What the numbers of a plan may be, and the sentences that refuse all others."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from dpfed.errors import UserError

_USUAL_GROUP = 16
MOST_RECORDS, MOST_STEPS = 10**12, 10**9  # beyond these, accounting in numbers of 64 bits means nothing
LEAST_EPSILON = 1e-3  # losses are added up on a grid of 1e-5 at best
# Of new plans; that of a file is taken as it is. Nobody means less: a gradient so short is hardly more than rounding. More than
# the length of any gradient buries it in noise.
CLIP_NORMS, STABILITIES = (1e-5, 1e6), (1e-4, 1e4)


def wrong_clip_norm(value: float) -> str:
    """What is expected instead of a clip norm that nobody means; empty: nothing is wrong."""
    return _beyond(value, CLIP_NORMS, "begin with 1, or with 0.1 to 0.01 for an image-text model")


def wrong_stability(value: float) -> str:
    """What is expected instead of a stability that nobody means; empty: nothing is wrong."""
    return _beyond(value, STABILITIES, "begin with the default, 0.01")


def _beyond(value: float, limits: tuple[float, float], advice: str) -> str:
    return "" if limits[0] <= value <= limits[1] else f"expected {limits[0]:g} to {limits[1]:g} ({advice})"


def plain_number(name: str, kind: type, value: Any) -> Any:
    """A number of the expected kind; one of an array becomes Python's own, which can be written to a file."""
    if isinstance(value, np.generic):
        value = value.item()
    right = isinstance(value, int | kind) and not isinstance(value, bool)
    require(right, f"{name} must be a {'whole ' * (kind is int)}number, got {value!r}")
    return value


def normalise_numbers(value: Any, prefix: str = "") -> None:
    """Makes plain numbers of a new dataclass's fields of such types, or refuses them by their names behind a `prefix`."""
    for field in dataclasses.fields(value):
        given, (kind, *rest) = getattr(value, field.name), str(field.type).split(" | ")
        if kind in ("int", "float") and not (rest and given is None):
            number = plain_number(prefix + field.name, int if kind == "int" else float, given)
            object.__setattr__(value, field.name, number)


def positive(value: float) -> bool:
    """Whether a number is above 0 and finite."""
    return 0 < value < math.inf


def require_epsilon(name: str, value: float) -> None:
    """Refuses an epsilon that is not a promise, or one so small that accounting cannot tell it from none at all."""
    require(
        positive(value) and value >= LEAST_EPSILON,
        f"{name} must be positive, at least {LEAST_EPSILON:g} (noise for less leaves nothing to learn), got {value}",
    )


def require_batch(batch: int, records: int, group_size: int, least: int) -> None:
    """Refuses a batch that is empty or larger than the training records, and suggests one that trains.

    Args:
        batch: B.
        records: N, or `MOST_RECORDS` where nobody knows it yet.
        group_size: S, of the configuration.
        least: so many records contrast, at least.
    """
    if records == MOST_RECORDS:
        said = f"batch must be at least {least}, and a tenth of the training records as a rule, got {batch}"
        return require(1 <= batch <= records, said)
    usual = max(min(_USUAL_GROUP, records), records // 10)  # far from all, and enough to contrast
    usual = max(usual, min(group_size, records))
    command = f"--set privacy.batch={usual}"
    if group_size > usual:
        command += f" --set bounding.group_size={max(least, min(_USUAL_GROUP, usual) // 4)}"
    require_within("batch", batch, 1, records, " (the training records)", command, shown=min(least, records))


def require_within(
    name: str, value: int, least: int, most: int | None = None, which: str = "", command: str = "", shown: int | None = None
) -> None:
    """Refuses what is too small or too large; `command`: see `require`; `shown`: the least that the sentence advises."""
    advised = least if shown is None else shown
    expected = f"be at least {advised}" if most is None else f"lie in {advised}..{most:,}{which}"
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
        raise UserError(f"impossible plan: {message}. [plan-impossible]", command=f"Try {command}." if command else "")
