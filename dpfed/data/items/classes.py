"""Converts the labels of items to text or to class numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpfed.errors import UserError


def labels_in_words(labels: Mapping[str, Any], classes: Mapping[str, Sequence[str]]) -> str:
    """Describes a record's labels by the names of their classes, because class numbers may depend on other records.

    Args:
        labels: Label of the record for each label name, as it stands in the item.
        classes: Names of the classes, by label name; a label whose classes have no known names is absent.

    Returns:
        A string such as `` colour=red size='large'``. A value without a known class name is given as it stands. Labels whose
        value is ``None`` or -1 are left out, so the string is empty for a record without labels.
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
        given: Labels of each of N records by label name, as they stand in the item.
        known: Names of the classes, by label name; a label whose classes have no known names is absent.

    Returns:
        For each label name, the class numbers of the records, ``(N,)`` int64, -1 for a record without the label; and for each
        label name, the names of its classes in the order of their numbers.

    Raises:
        UserError: If the values of a label (but for ``None``) are neither all whole numbers nor all strings.
    """
    labels: dict[str, np.ndarray] = {}
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys(key for of_record in given for key in of_record):
        values = [of_record.get(name) for of_record in given]
        classes = known.get(name)
        numbers = [-1 if value is None else value for value in values]
        are_numbers = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if classes is not None and are_numbers and all(-1 <= number < len(classes) for number in numbers):
            labels[name], names[name] = np.array(numbers, np.int64), list(classes)
            continue
        kinds = {type(value) for value in values if value is not None}
        if not kinds <= {int, str} or len(kinds) > 1:
            raise UserError(
                f"the label '{name}' has values of {' and '.join(sorted(kind.__name__ for kind in kinds))}: expected only "
                "whole numbers or only strings, with None for a record without the label. [records-label]"
            )
        distinct = sorted({value for value in values if value is not None and value != -1})
        place = {value: number for number, value in enumerate(distinct)}
        labels[name] = np.array([place.get(value, -1) for value in values], np.int64)
        names[name] = [str(value) for value in distinct]
    return labels, names
