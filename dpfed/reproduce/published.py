"""The papers' published figures, which dpfed ships as CSV files, one figure in each row (``benchmarks/published/*.csv``)."""

from __future__ import annotations

import csv
import functools
import math
from dataclasses import dataclass
from typing import Any

from dpfed.files import shipped

PAPERS = ("dp-gcl", "logit-dp", "dpcl", "batch-norm")


@dataclass(frozen=True)
class Published:
    """One figure of one paper.

    Attributes:
        paper: Name of the paper, one of `PAPERS`.
        table: Number of the table in the paper.
        data: Name of the data set in dpfed's configurations.
        model: Model that was trained.
        method: Name of the method in the paper.
        setting: Setting that distinguishes the figure from others of its table; empty: no setting is needed.
        epsilon: Epsilon of the guarantee, infinity without privacy; ``None``: the paper's experiment is not about privacy.
        metric: Metric that was measured, or hyperparameter whose value is given.
        value: Value in the paper's unit (percent for accuracies of dp-gcl and batch-norm); a word for a few hyperparameters;
            ``None``: training diverged.
        std: Standard deviation or error; ``None``: the paper gives none.
    """

    paper: str
    table: str
    data: str
    model: str
    method: str
    setting: str
    epsilon: float | None
    metric: str
    value: float | str | None
    std: float | None


@functools.cache
def published(paper: str, table: str | None = None) -> tuple[Published, ...]:
    """Reads the figures of a paper, or of one of its tables.

    Args:
        paper: Name of the paper, one of `PAPERS`.
        table: Number of the table; ``None``: all tables.
    """
    with open(shipped.published(paper), encoding="utf-8", newline="") as file:
        rows = [_figure(row) for row in csv.DictReader(file)]
    return tuple(row for row in rows if table in (None, row.table))


def beside(paper: str, table: str, **key: str | float) -> Published | None:
    """Returns the one figure of a table that has the given values in its columns.

    Args:
        paper: Name of the paper, one of `PAPERS`.
        table: Number of the table.
        **key: Values of columns, by the attribute's name in `Published`.

    Returns:
        The figure; ``None`` if no figure of the table, or more than one, has these values.
    """
    matches = [row for row in published(paper, table) if all(getattr(row, name) == value for name, value in key.items())]
    return matches[0] if len(matches) == 1 else None


def _figure(row: dict[str, str]) -> Published:
    epsilon, std = (float(row[name]) if row[name] else None for name in ("epsilon", "std"))
    figure: dict[str, Any] = {**row, "epsilon": epsilon, "std": std, "value": _value(row["value"])}
    return Published(**figure)


def _value(text: str) -> float | str | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return text
    return value if value is None or math.isfinite(value) else None
