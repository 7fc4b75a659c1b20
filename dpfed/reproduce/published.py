"""The figures of the papers, which dpfed ships (in the repository: ``benchmarks/published/*.csv``): one figure a row."""

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
        paper: one of `PAPERS`.
        table: its number in the paper.
        data: the data set, as our configurations call it.
        model: that was trained.
        method: as the paper calls it.
        setting: what else tells the figure from others of its table; empty: nothing.
        epsilon: of the promise, infinity without privacy; ``None`` where the paper trains without any question of privacy.
        metric: what was measured, or the setting that is given.
        value: in the paper's unit (percent for accuracies of DP-GCL and BN); a word for a few settings; ``None``: diverged.
        std: standard deviation or error; ``None`` where the paper gives none.
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
    """The figures of a paper, or of one of its tables."""
    with open(shipped.published(paper), encoding="utf-8", newline="") as file:
        rows = [_figure(row) for row in csv.DictReader(file)]
    return tuple(row for row in rows if table in (None, row.table))


def beside(paper: str, table: str, **key: str | float) -> Published | None:
    """The one figure of a table that has all the given columns; ``None`` where the paper has none, or says it twice."""
    found = [row for row in published(paper, table) if all(getattr(row, name) == value for name, value in key.items())]
    return found[0] if len(found) == 1 else None


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
