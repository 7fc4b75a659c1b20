"""How much may be asked for: bounds on what people write, so that a slip of the finger is an error and not a full disk."""

from __future__ import annotations

import operator

from dpfed.errors import UserError

SMALLEST_SIDE, LARGEST_SIDE = 1, 4096  # pixels of a stored square image; the largest takes 50 MB
MOST_SITES = 4096


def whole_number(given: object, what: str, least: int = 0, most: int | None = None) -> int:
    """A whole number within bounds.

    Args:
        given: what the user wrote.
        what: what it counts, for the message.
        least: the smallest that makes sense.
        most: the largest; ``None``: any.

    Raises:
        UserError: when it is not a whole number, too small or too large.
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
    """The side of stored square images, pixels; ``None``: files are stored as they are.

    Raises:
        UserError: when it is not such a side.
    """
    return None if size is None else whole_number(size, "the side of stored images, pixels,", SMALLEST_SIDE, LARGEST_SIDE)
