"""Labels of items, as text and as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpfed.errors import UserError


def labels_in_words(labels: Mapping[str, Any], classes: Mapping[str, Sequence[str]]) -> str:
    """Describes a record's labels by the names of their classes, since class numbers may depend on other records.

    Args:
        labels: Labels of the record, by label name.
        classes: Names of the classes by label name, where they are known.
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
    """Converts the labels of records to class numbers.

    Args:
        given: Labels of each record by label name, as they stand in the item.
        known: Names of the classes by label name, where they are known.

    Returns:
        The class numbers by label name, each ``(N,)`` int64, -1 for a record without the label; and the names of the classes.

    Raises:
        UserError: If labels are neither whole numbers nor texts, or a mixture of both.
    """
    labels: dict[str, np.ndarray] = {}
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys(key for of_record in given for key in of_record):
        values = [of_record.get(name) for of_record in given]
        classes = known.get(name)
        numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
        if classes is not None and len(numbers) == len(values) and all(-1 <= number < len(classes) for number in numbers):
            labels[name], names[name] = np.array(values, np.int64), list(classes)
            continue
        kinds = {type(value) for value in values if value is not None}
        if not kinds <= {int, str} or len(kinds) > 1:
            raise UserError(
                f"the label '{name}' is {' or '.join(sorted(kind.__name__ for kind in kinds))}: expected whole numbers, or "
                "texts, and None for a record without the label. [records-label]"
            )
        distinct = sorted({value for value in values if value is not None and value != -1})
        place = {value: number for number, value in enumerate(distinct)}
        labels[name] = np.array([place.get(value, -1) for value in values], np.int64)
        names[name] = [str(value) for value in distinct]
    return labels, names
