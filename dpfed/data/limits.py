"""Checks bounds on the numbers that users give, so that a typing error leads to an error message and not to a full disk."""

from __future__ import annotations

import operator

from dpfed.errors import UserError

SMALLEST_SIDE, LARGEST_SIDE = 1, 4096  # pixels of a stored square image; the largest takes 50 MB
MOST_SITES = 4096


def whole_number(given: object, what: str, least: int = 0, most: int | None = None) -> int:
    """Checks that a value is a whole number within bounds, and returns it.

    Args:
        given: Value that the user gave.
        what: Name of the quantity, for the message.
        least: Smallest allowed number.
        most: Largest allowed number; ``None``: no upper bound.

    Raises:
        UserError: If the value is not a whole number, or is too small or too large.
    """
    try:
        number = None if isinstance(given, bool) else operator.index(given)  # type: ignore[arg-type]  # what has no index raises
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        expected = f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"
        raise UserError(f"{what} must be a whole number {expected}, got {given!r}. [data-number]")
    return number


def stored_side(size: int | None) -> int | None:
    """Checks the side of stored square images, and returns it.

    Args:
        size: Side, pixels; ``None``: image files are stored as they are, and ``None`` is returned.

    Raises:
        UserError: If `size` is not a valid side.
    """
    return None if size is None else whole_number(size, "the side of stored images, pixels,", SMALLEST_SIDE, LARGEST_SIDE)
