"""Tables of private moments, for README.md and docs/results.md."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.record import figures

_MOMENTS = "moments"
_HEADS = "DP-GCL heads"
_PUBLIC = "public contrast"
_AFTER = "DP-GCL after moments"
_IN_SHORT = (("icons", 600), ("symbols", 2695), ("cifar10", 30_000))
_ALSO = {"cifar10": (3000,)}  # numbers of records that only the long table shows
_BASES = "moment-basis"
_UNMEASURED = "–"
_SHOWN = (1.0, 3.0, 8.0)  # epsilons


def moments() -> str:
    """Returns the table of private moments, DP-GCL heads and the public towers alone, for few and many records."""
    head = "| records | public towers alone | DP-GCL heads at epsilon 1, 8 | moments at epsilon 1, 3, 8 | hardly any noise |"
    lines, sets = [head, "|---" * 5 + "|"], figures("moments")["sets"]
    for name, count in _IN_SHORT:
        rows = _rows(sets[name], count)
        trained = ", ".join(_mean(rows.get((_HEADS, epsilon))) for epsilon in (1.0, 8.0))
        draws = _of_basis(name, count, "generated")
        private = ", ".join(_mean(draws.get(epsilon)) for epsilon in (1.0, 3.0, 8.0))
        cells = [_mean([sets[name]["public"]]), trained, private, _mean(draws.get(None))]
        lines.append(f"| {count:,} {name}, {sets[name]['measure']} | {' | '.join(cells)} |")
    missing = f" Not measured: {_UNMEASURED}." if any(_UNMEASURED in line for line in lines) else ""
    return "\n".join([*lines, "", f"Percent; means over draws of the noise.{missing}"])


def sets() -> str:
    """Returns the table of all methods on all sets, at a small and at the largest N."""
    ways = [(_MOMENTS, 1.0), (_MOMENTS, 3.0), (_MOMENTS, 8.0), ("no privacy", None)]
    ways += [(_HEADS, 1.0), (_HEADS, 8.0), (_PUBLIC, 1.0), (_PUBLIC, 8.0), (_AFTER, 8.0)]
    lines = [
        "| records | public towers | moments, random basis, epsilon 1 | 3 | 8 | hardly any noise | DP-GCL heads, epsilon 1 | 8 "
        "| public contrast, epsilon 1 | 8 | DP-GCL after moments |",
        "|---" * 11 + "|",
    ]
    for name, case in figures("moments")["sets"].items():
        for count in sorted({600, *(row["records"] for row in case["rows"] if row["epsilon"] == 0.1), *_ALSO.get(name, ())}):
            rows = _rows(case, count)
            cells = [_mean([case["public"]]), *(_spread(rows.get(way)) for way in ways)]
            lines.append(f"| {count:,} {name} | {' | '.join(cells)} |")
    return "\n".join(
        [
            *lines,
            "",
            "±: standard deviation over five draws of the noise."
            + (f" {_UNMEASURED}: not measured." if any(_UNMEASURED in line for line in lines) else ""),
        ]
    )


def bases() -> str:
    """Returns the table of bases: random rows, generated records with one layer and with several, and near records."""
    kinds = {
        "random": "random basis",
        "generated, last layer": "generated, last layer",
        "generated": "generated, several layers",
        "near": "near, several layers",
    }
    lines = [f"| records | {' | '.join(kinds.values())} | hardly any noise |", "|---" * (2 + len(kinds)) + "|"]
    spreads: list[float] = []
    for name, case in figures(_BASES)["sets"].items():
        counts = {row["records"] for row in case["rows"]}
        for count in sorted({300, 600, 3000, min(30_000, max(counts))} & counts):
            of_kinds = {kind: _of_basis(name, count, kind) for kind in kinds}
            spreads += [statistics.stdev(rows[epsilon]) for rows in of_kinds.values() for epsilon in _SHOWN if epsilon in rows]
            cells = [
                ", ".join(_mean(rows.get(epsilon)) for epsilon in _SHOWN) if rows else _UNMEASURED for rows in of_kinds.values()
            ]
            lines.append(f"| {count:,} {name} | {' | '.join(cells)} | {_mean(of_kinds['generated'].get(None))} |")
    usual, most = (100 * std for std in (statistics.median(spreads), max(spreads)))
    said = (
        f"Each cell: epsilon {', '.join(map(_said, _SHOWN))}. Means over five draws of the noise; their "
        f"standard deviation is {usual:.1f} as a rule and {most:.1f} at most. {_UNMEASURED}: not measured."
    )
    return "\n".join([*lines, "", said])


def ratios() -> str:
    """Returns the table of the figures of public bases, divided by those of a random basis, as means over sets of pictures."""
    kinds = ("generated, last layer", "generated", "near")
    sets = {name: case for name, case in figures(_BASES)["sets"].items() if case["measure"] == "R@10"}
    lines = ["| records | epsilon | " + " | ".join(f"{kind}" for kind in kinds) + " |", "|---" * (2 + len(kinds)) + "|"]
    for said, count in (("600", 600), ("986 to 2,695", None)):
        for epsilon in _SHOWN:
            cells = []
            for kind in kinds:
                sums = []
                for basis in (kind, "random"):
                    counts = {name: count or max(row["records"] for row in case["rows"]) for name, case in sets.items()}
                    sums.append(sum(statistics.mean(_of_basis(name, size, basis)[epsilon]) for name, size in counts.items()))
                cells.append(f"{sums[0] / sums[1]:.2f}")
            lines.append(f"| {said} | {_said(epsilon)} | {' | '.join(cells)} |")
    names = ", ".join(sets)
    return "\n".join(
        [*lines, "", f"Mean R@10 over three sets ({names}), divided by that of a random basis and the last layers."]
    )


def images() -> str:
    """Returns the table of private moments of an image tower alone."""
    result = figures("moments-of-images")
    lines = ["| records | public tower alone | epsilon 1 | 3 | 8 | hardly any noise |", "|---" * 6 + "|"]
    for count in dict.fromkeys(row["records"] for row in result["rows"]):
        draws = {row.get("epsilon", "public"): row["figures"] for row in result["rows"] if row["records"] == count}
        cells = [f"{100 * draws['public'][0]:.1f}", *(_spread(draws.get(epsilon), 1) for epsilon in (1.0, 3.0, 8.0, None))]
        lines.append(f"| {count:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(measured: dict[str, Any], count: int) -> dict[tuple[str, float | None], list[float]]:
    return {(row["method"], row["epsilon"]): row["figures"] for row in measured["rows"] if row["records"] == count}


def _of_basis(name: str, count: int, kind: str) -> dict[float | None, list[float]]:
    """Returns the figures of five draws of the noise for a set, a number of records and a kind of basis, by epsilon."""
    rows = figures(_BASES)["sets"][name]["rows"]
    return {row["epsilon"]: row["figures"] for row in rows if (row["records"], row["basis"]) == (count, kind)}


def _said(epsilon: float) -> str:
    return str(epsilon).removesuffix(".0")


def _mean(values: list[float] | None) -> str:
    return f"{100 * statistics.mean(values):.0f}" if values else _UNMEASURED


def _spread(values: list[float] | None, digits: int = 0) -> str:
    """Formats the mean in percent, with the standard deviation if there are several draws."""
    if not values:
        return _UNMEASURED
    mean = f"{100 * statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * statistics.stdev(values):.{digits}f}"
