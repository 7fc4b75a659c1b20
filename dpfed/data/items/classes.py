"""Labels of items: what they say of a record, and as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpfed.errors import UserError


def labels_in_words(labels: Mapping[str, Any], classes: Mapping[str, Sequence[str]]) -> str:
    """A record's labels by the names of their classes, whose numbers may depend on which classes other records have.

    Args:
        labels: of the record, by name.
        classes: names of the classes, by the label's name, where they are known.
    """
    text = ""
    for name, value in sorted(labels.items()):
        known = classes.get(name, ())
        if value is not None and value != -1:
            text += f" {name}={known[value] if isinstance(value, int) and 0 <= value < len(known) else value!r}"
    return text


def numbered_labels(
    given: Sequence[Mapping[str, Any]], known: Mapping[str, Sequence[str]]
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Classes as numbers, and the names of the numbers.

    Args:
        given: labels of each record, by name, as they stand in the item.
        known: names of the classes, by the label's name, where they are known.

    Returns:
        By the label's name, ``(N,)`` int64, -1 where a record has none; and the names of the numbers.

    Raises:
        UserError: for labels that are neither whole numbers nor texts, or are both.
    """
    labels: dict[str, np.ndarray] = {}
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys(key for own in given for key in own):
        values = [own.get(name) for own in given]
        classes = known.get(name)
        numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
        if classes is not None and len(numbers) == len(values) and all(-1 <= number < len(classes) for number in numbers):
            labels[name], names[name] = np.array(values, np.int64), list(classes)
            continue
        kinds = {type(value) for value in values if value is not None}
        if not kinds <= {int, str} or len(kinds) > 1:
            raise UserError(
                f"the label '{name}' is {' or '.join(sorted(kind.__name__ for kind in kinds))}: expected whole numbers, or "
                "texts, and None where a record has none. [records-label]"
            )
        found = sorted({value for value in values if value is not None and value != -1})
        place = {value: number for number, value in enumerate(found)}
        labels[name] = np.array([place.get(value, -1) for value in values], np.int64)
        names[name] = [str(value) for value in found]
    return labels, names
