"""Tables of what `dpfed pretrain --data` chooses: expected, reached, and reached by hand (`benchmarks.automatic`)."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.record import figures

_CLOSE = 5.0  # points


def trained() -> str:
    """Returns the table of the runs that were trained both with dpfed's choices and with the recipe."""
    lines = ["| records | epsilon | runs | before | chosen | by hand | expected |", "|---" * 7 + "|"]
    for row in figures("automatic")["trained"]:
        before = _mean(row["automatic"], 0)
        cells = (
            row["set"],
            str(row["epsilon"]).removesuffix(".0"),
            str(len(row["automatic"])),
            f"{before:.1f}",
            _shown(row["automatic"]),
            _shown(row["by hand"]),
        )
        lines.append(f"| {' | '.join(cells)} | {_said(row)} |")
    lines += [
        "",
        "Percent: mean of 200-NN and linear probe (images), or of both R@10 (pairs). ±: standard deviation over runs. By hand: "
        "`recipes/small-images`, `quickstart` or `adapt/shapes`, with a batch that suits the number of records.",
    ]
    if same := [row for row in figures("automatic")["trained"] if row.get("is the recipe")]:
        lines[-1] += f" {_alike(same)}"
    return "\n".join(lines)


def _alike(rows: list[dict[str, Any]]) -> str:
    """Returns the joint figures of the runs of both ways, for rows in which dpfed chose the recipe itself."""
    reached = [
        f"{row['set']}, epsilon {str(row['epsilon']).removesuffix('.0')}: {_shown([*row['automatic'], *row['by hand']])}"
        for row in rows
    ]
    return (
        "Where the choice and the recipe train with the same settings, the columns differ in their draws alone. All runs "
        f"together then reach: {'; '.join(reached)}."
    )


def hit() -> str:
    """Returns the sentences about how often an expectation was right."""
    found = figures("automatic")
    errors = [abs(row["expected"] - row["reached"]) for row in found["moments"]]
    signs: list[bool] = []
    for row in found["trained"]:
        signs.append(_sign(row))
        if (error := _error(row)) is not None:
            errors.append(error)
    close = sum(error <= _CLOSE for error in errors)
    share = 100 * close / len(errors)
    return (
        f"Of {len(errors)} cells, the expectation was within {_CLOSE:.0f} points in {close} ({share:.0f} %); "
        f"{len(found['moments'])} of them are pictures behind frozen towers. Whether anything would be gained was right in "
        f"{sum(signs)} of the {len(signs)} others. The curves were fitted to these very sets."
    )


def _mean(runs: list[list[float]], place: int) -> float:
    return statistics.mean(run[place] for run in runs)


def _shown(runs: list[list[float]]) -> str:
    after = [run[1] for run in runs]
    spread = f" ± {statistics.stdev(after):.1f}" if len(after) > 1 else ""
    return f"{statistics.mean(after):.1f}{spread}"


def _expected(row: dict[str, Any]) -> float | None:
    """Returns the expected figure after training, percent; if only a gain is expected, it is added to the measured start."""
    said, before = row["expected"], _mean(row["automatic"], 0)
    if said["after"] is None:
        return None
    return said["after"] if said["before"] is not None else before + said["after"]


def _said(row: dict[str, Any]) -> str:
    after = _expected(row)
    return "more" if after is None else f"{after:.0f}"


def _error(row: dict[str, Any]) -> float | None:
    after = _expected(row)
    return None if after is None else abs(after - _mean(row["automatic"], 1))


def _sign(row: dict[str, Any]) -> bool:
    """Returns whether the expectation was right about a gain of at least 1 point.

    Without an expected figure, as for adapters of aligned towers, a gain counts as expected.
    """
    after, before = _expected(row), _mean(row["automatic"], 0)
    gained = _mean(row["automatic"], 1) - before
    return (after is None or after - before >= 1) == (gained >= 1)
