"""Tables of methods, losses, forecasts and the papers' experiments, for docs/results.md."""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks.record import figures, made_by
from dpfed.evaluation.intervals import wilson
from dpfed.report.results import label


def logit() -> str:
    """Returns the sentences about what clipping similarities costs."""
    result = figures("logit")
    fast, price = result["fast_path"], result["price_of_the_bound"]
    cases = [case for case in price.values() if isinstance(case, dict)]
    lengths, cosines = ([case[key] for case in cases] for key in ("length_of_sum", "cosine_of_sums"))
    steps = {
        f"{how} path on {net} at B = {case['records']:,}": case["over_group"].get(f"logit, {how}")
        for how in ("bound", "exact")
        for net, case in result["beside_groups"].items()
    }
    times = ", ".join(f"{value:.0f} ({name})" for name, value in steps.items() if value)
    return (
        f"Time of a step of `logit`, divided by that of `group` with S = 16 on the same records: {times}. The exact path takes "
        f"1/{fast['times_as_fast']:.0f} of the time of a loop over all pairs at B = {fast['records']}. The sum "
        "clipped by bounds "
        f"has {min(lengths):.2f} to {max(lengths):.2f} of the exact one's length, at a cosine of at least {min(cosines):.3f}. "
        f"{made_by('logit')}"
    )


def table1() -> str:
    """Returns the DP-GCL paper's Table 1 at the small scale, with columns for each epsilon."""
    names = {epsilon: f"table1-cifar10-cpu-epsilon{epsilon}" for epsilon in (10, 1)}
    rows = {epsilon: figures(name)["rows"] for epsilon, name in names.items()}
    columns = [(epsilon, metric) for epsilon in rows for metric in dict.fromkeys(row["metric"] for row in rows[epsilon])]
    lines = [
        "| ours, paper's | " + " | ".join(f"{label(metric)}, epsilon {epsilon}" for epsilon, metric in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    values = {(epsilon, row["name"], row["metric"]): row for epsilon, table in rows.items() for row in table}
    for method in dict.fromkeys(row["name"] for row in rows[10]):
        cells = (values[epsilon, method, metric] for epsilon, metric in columns)
        lines.append(
            f"| {method} | {' | '.join(', '.join(_percent(row[whose]) for whose in ('ours', 'published')) for row in cells)} |"
        )
    precision = _precision([row for table in rows.values() for row in table], 2000)
    return "\n".join([*lines, "", f"{figures(names[10])['scale']} {precision}"])


def objectives() -> str:
    """Returns the table of other losses, and of BatchNorm with public anchors, before and after training."""
    result = figures("objectives-cifar10-cpu")
    rows = [row for row in result["rows"] if not row["name"].startswith("VICReg")]  # measured once; dpfed has it no more
    values = {(row["name"], row["metric"]): row["ours"] for row in rows}
    metrics = list(dict.fromkeys(metric for _, metric in values))
    lines = [
        "| CIFAR-10, epsilon 10, small scale | "
        + " | ".join(f"{label(metric)}, before and after" for metric in metrics)
        + " |",
        "|---" * (len(metrics) + 1) + "|",
    ]
    for name in (name for name, metric in values if metric == metrics[0] and not name.endswith(", before")):
        cells = (", ".join(f"{values[which, metric]:.1f}" for which in (f"{name}, before", name)) for metric in metrics)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _precision(rows, 5000)])


def losses() -> str:
    """Returns the table of what losses of one group gain at one epsilon."""
    result = figures("losses")
    runs, settings, metrics = result["runs"], result["settings"], ("knn3_accuracy", "knn200_accuracy")
    heads = " | ".join(f"{label(metric)}, points gained" for metric in metrics)
    lines = [f"| CIFAR-10, epsilon {settings['epsilon']} | {heads} | trained parameters |", "|---" * (len(metrics) + 2) + "|"]
    for name in dict.fromkeys(run["loss"] for run in runs):
        chosen = [run for run in runs if run["loss"] == name]
        gains = [[100 * (run["after"][metric] - run["before"][metric]) for run in chosen] for metric in metrics]
        cells = " | ".join(f"{statistics.mean(gain):.1f} ± {statistics.stdev(gain):.1f}" for gain in gains)
        lines.append(f"| {name} | {cells} | {chosen[0]['parameters']:,} |")
    before = [statistics.mean(100 * run["before"][metric] for run in runs) for metric in metrics]
    count = len({run["seed"] for run in runs})
    plan = ", ".join(f"{sign} = {settings[key]:,}" for sign, key in (("B", "batch"), ("S", "group_size"), ("T", "steps")))
    images = f"{settings['records']:,} images at {settings['size']} px, {plan}."
    untrained = f"The untrained encoders reach {before[0]:.1f}% and {before[1]:.1f}%."
    bars = f"±: standard deviation over {count} runs, each from other weights, which are the same for all losses."
    return "\n".join([*lines, "", f"{images} {untrained} {bars}"])


def _precision(rows: list[dict[str, Any]], records: int) -> str:
    """Returns a sentence with the largest half-width of the 95% intervals of a table's figures.

    Figures without an interval get Wilson's interval for `records` held-out records.
    """
    ends = []
    for ours, interval in ((row["ours"], row.get("interval")) for row in rows if row["ours"] is not None):
        low, high = interval or (100 * end for end in wilson(ours / 100, records))
        ends.append(max(high - ours, ours - low))
    return f"{records:,} held-out records: 95% intervals reach at most ± {math.ceil(10 * max(ends)) / 10:.1f} points."


def _percent(value: Any) -> str:
    return "" if value is None else f"{value:.1f}"


def forecast() -> str:
    """Returns the table of how well forecasts rank plans, compared with trained runs."""
    result = figures("forecast")
    lines = ["| plans | rank correlation, procedural images | similar public records |", "|---|---|---|"]
    agreement = result["agreement"]
    for kind in dict.fromkeys(name.partition(", on ")[0] for name in agreement):
        cases = [agreement.get(f"{kind}, on {public}") for public in ("procedural", "shapes")]
        cells = ["" if case is None else f"{case['rank_correlation']:.2f}" for case in cases]
        lines.append(f"| {kind} ({cases[0]['plans']}) | {' | '.join(cells)} |")
    took = [case["took"] for row in result["plans"].values() for case in row["forecast"].values()]
    lines += [
        "",
        "Plans differ in epsilon, batch, group size, steps, records, and LoRA or full training; each was trained once. "
        f"A forecast took {min(took):.0f} to {max(took):.0f} seconds on one busy core. {made_by('forecast')}",
    ]
    return "\n".join(lines)
