"""Charts of public records, as values that a run keeps: maps of their features, and confusion matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COLOURED = 10  # classes whose colours a reader can tell apart
SHOWN = 12  # classes of a confusion matrix that fit on a page
OTHERS = "others"
Points = tuple[tuple[float, float], ...]
Counts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class EmbeddingMap:
    """A two-dimensional map of a model's features of some public records.

    Attributes:
        label: Label that the colours show, such as ``shape``.
        names: Names of the classes; at most `COLOURED`, the most frequent.
        classes: Class number of each of n records; -1: a class that is not in `names`, or no class.
        after: Positions by the trained model, n points, each coordinate in [0, 1].
        before: Positions by the untrained model; empty: not known.
    """

    label: str
    names: tuple[str, ...]
    classes: tuple[int, ...]
    after: Points
    before: Points = ()


@dataclass(frozen=True)
class Confusion:
    """The confusion matrix of zero-shot classification: the model saw the names of the classes and no labels.

    Attributes:
        label: Label that is predicted, such as ``shape``.
        names: Names of C classes that have records; at most `SHOWN`, the most frequent.
        after: Counts of the trained model, C rows, one for each true class. A row holds the number of its records that the
            model assigned to each of the C classes. If classes are left out, a last number counts the records assigned to them.
        before: Counts of the untrained model; empty: not known.
    """

    label: str
    names: tuple[str, ...]
    after: Counts
    before: Counts = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self.names if len(self.after[0]) == len(self.names) else (*self.names, OTHERS)

    @property
    def tables(self) -> list[tuple[str, list[tuple[str, list[tuple[int, int]]]]]]:
        """The tables to show: a title, and rows with a class and, for each column, a count and its percentage of the row."""
        titled = (("Before training", self.before), ("After training", self.after))
        return [
            (title, [(name, _percent(row)) for name, row in zip(self.names, counts, strict=True)])
            for title, counts in titled
            if counts
        ]


def as_json(maps: tuple[EmbeddingMap, ...], confusions: tuple[Confusion, ...]) -> dict[str, Any]:
    """Converts the charts to the JSON that a run's folder stores."""
    return {"maps": [vars(chart) for chart in maps], "confusions": [vars(chart) for chart in confusions]}


def from_json(kept: Mapping[str, Any]) -> tuple[tuple[EmbeddingMap, ...], tuple[Confusion, ...]]:
    """Restores the charts from the output of `as_json`.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: If `kept` is not an output of `as_json`.
    """
    maps = tuple(
        EmbeddingMap(
            str(chart["label"]),
            _texts(chart["names"], COLOURED),
            tuple(map(int, chart["classes"])),
            _points(chart["after"], len(chart["classes"])),
            _points(chart["before"], len(chart["classes"])) if chart["before"] else (),
        )
        for chart in kept["maps"]
    )
    confusions = tuple(
        Confusion(
            str(chart["label"]),
            _texts(chart["names"], SHOWN),
            _counts(chart["after"], len(chart["names"])),
            _counts(chart["before"], len(chart["names"])) if chart["before"] else (),
        )
        for chart in kept["confusions"]
    )
    return maps, confusions


def _percent(row: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(count, round(100 * count / max(1, sum(row)))) for count in row]


def _texts(given: Any, most: int) -> tuple[str, ...]:
    if not 0 < len(given) <= most:
        raise ValueError(f"expected 1 to {most} classes, got {len(given)}")
    return tuple(map(str, given))


def _points(given: Any, count: int) -> Points:
    points = tuple((float(x), float(y)) for x, y in given)
    if len(points) != count or not all(0 <= value <= 1 for point in points for value in point):
        raise ValueError(f"expected {count} points between 0 and 1")
    return points


def _counts(given: Any, count: int) -> Counts:
    rows = tuple(tuple(int(value) for value in row) for row in given)
    widths = {len(row) for row in rows}
    if len(rows) != count or len(widths) != 1 or not widths <= {count, count + 1}:
        raise ValueError(f"expected {count} rows with a number for each class")
    return rows
