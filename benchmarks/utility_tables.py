"""Tables of what makes a private model better: public contrast beside DP-GCL, starts, and what was tried."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.record import figures, made_by
from dpfed.privacy.promise import round_up

_PROMISES = "Each figure is the mean of its runs, with the standard deviation where there are several."
_WIDTH = 16  # of the CNN in the studies on CIFAR-10
RETRIEVED = ("image_to_text_R@10", "text_to_image_R@10")
RECOGNISED = {"knn3_accuracy": "3-NN", "knn200_accuracy": "200-NN", "linear_probe_accuracy": "linear probe"}


def public_contrast() -> str:
    """R@10 over epsilon, at each side's best rate."""
    found = figures("public-contrast")
    runs = found["runs"]
    rates = {method: _best_rate(runs, method) for method in ("group", "public")}
    lines = [
        "| epsilon | DP-GCL, groups of 4 private records | public contrast, M = 3 | runs of each |",
        "|---|---|---|---|",
    ]
    for epsilon in sorted({run["epsilon"] for run in runs}):
        sides = {method: runs_at_best_rate(method, epsilon) for method in rates}
        if all(sides.values()):
            cells = (
                " / ".join(spread(run["after"][metric] for run in side) for metric in RETRIEVED) for side in sides.values()
            )
            counts = " and ".join(dict.fromkeys(str(len(side)) for side in sides.values()))
            lines.append(f"| {round_up(epsilon)} | {' | '.join(cells)} | {counts} |")
    before = {run["run"]: run["before"] for run in runs}
    starts = " / ".join(spread(one[metric] for one in before.values()) for metric in RETRIEVED)
    tried = ", ".join(f"{rate:g}" for rate in sorted({run["rate"] for run in runs}))
    noises = (f"{_noise(_tuned(runs, method)[0]):.2f}" for method in rates)
    lines += [
        "",
        "Percent R@10, image to text / text to image, on captioned shapes in four colours that the public model never saw. "
        f"Public data alone (the model before any private record) reach {starts}. Both sides train all weights, for "
        f"{found['steps']} steps of {found['passes']:,} passes each, with the best of the rates {tried} by one run at "
        "epsilon 1 "
        f"({rates['group']:g} and {rates['public']:g}). At epsilon 1, the noise on each coordinate of the sum of 256 clipped "
        f"gradients is {' C and '.join(noises)} C. {_PROMISES} Each run begins with a public model of its own. "
        "`python -m benchmarks.public_contrast`",
    ]
    return "\n".join(lines)


def ladder() -> str:
    """What a small CNN's start brings, and what is reached without a private run."""
    found = figures("ladder")
    runs, names = found["runs"], {"random": "random", "procedural": "procedural", "shapes": "trained on rendered shapes"}
    lines = [f"| CIFAR-10 | {' | '.join(RECOGNISED.values())} | runs |", "|---" * 5 + "|"]
    if "scattering" in found:
        lines.append(f"| scattering features, nothing trained | {_cells([found['scattering']])} | |")
    methods = {"group": "DP-GCL, epsilon 1", "public": "public contrast, epsilon 1", "none": "without privacy"}
    best = {method: _best_rate([run for run in runs if run["start"] == "random"], method) for method in methods}
    for start in dict.fromkeys(run["start"] for run in runs):
        own = [run for run in runs if run["start"] == start]
        before = [run["before"] for run in own]
        distinct = list({tuple(sorted(one.items())): one for one in before}.values())  # a start that is made once is the same
        lines.append(f"| start: {names[start]}, before any record | {_cells(distinct)} | |")
        for method, words in methods.items():
            if chosen := [run for run in own if run["method"] == method and run["rate"] == best[method]]:
                lines.append(f"| {names[start]}, then {words} | {_cells([run['after'] for run in chosen])} | {len(chosen)} |")
                gains = [{metric: run["after"][metric] - run["before"][metric] for metric in RECOGNISED} for run in chosen]
                lines.append(f"| its gain over its own start, points | {_cells(gains)} | |")
    tried = ", ".join(f"{rate:g}" for rate in sorted({run["rate"] for run in runs}))
    lines += [
        "",
        f"Percent. {_PROMISES} A CNN of width {_WIDTH}, {found['steps']} steps of {found['passes']:,} passes of the model "
        f"each. Every method has the best of the rates {tried} by one run from random weights. {made_by('ladder')}",
    ]
    return "\n".join(lines)


_PUBLIC_SETS = {
    "procedural": "procedural images",
    "shapes": "rendered shapes",
    "photographs": "crops of 1,000 photographs",
    "other-classes": "images of other classes",
    "same-classes": "images of the same classes",
}


def public_sets() -> str:
    """Which public records help, and how many of them in a group."""
    found = figures("public-sets")
    runs = {(run["start"], run["public"], run["in_group"]): run for run in found["runs"]}
    lines = [
        "| public set | public data alone | public contrast from random weights | from weights of the public set |",
        "|---|---|---|---|",
    ]
    for kind, words in _PUBLIC_SETS.items():
        if (kind, kind, 3) in runs:
            both, scratch = runs[kind, kind, 3], runs["random", kind, 3]
            lines.append(f"| {words} | {_three(both['before'])} | {_gained(scratch)} | {_gained(both)} |")
    lines += [
        "",
        "| M, procedural images | public contrast from random weights | noise on the sum | passes of the model |",
        "|---|---|---|---|",
    ]
    for (start, kind, in_group), run in sorted(runs.items(), key=lambda one: one[0][2]):
        if (start, kind) == ("random", "procedural"):
            passes = (in_group + 1) * found["groups"]
            lines.append(f"| {in_group} | {_gained(run)} | {_noise(run):.2f} C | {passes:,} |")
    lines += [
        "",
        "Percent, 3-NN / 200-NN / linear probe, among five classes of CIFAR-10 (chance: 20), and in brackets the gain over the "
        f"run's own start. Epsilon 1; {found['steps']} steps of {found['groups']} groups; a CNN of width {_WIDTH}; "
        f"{found['records']:,} records in a public set. Alone: trained on the public set without noise, with as many passes. "
        f"One run each, so figures vary by two points. {made_by('public-sets')}",
    ]
    return "\n".join(lines)


def public_cifar10() -> str:
    """All of CIFAR-10 at epsilon 1, with photographs of other things."""
    found = figures("public-cifar10")
    runs = found["runs"]
    lines = [f"| CIFAR-10, epsilon 1 | {' | '.join(RECOGNISED.values())} | minutes | runs |", "|---" * 6 + "|"]
    for in_group in sorted({run["in_group"] for run in runs if run["start"] == "random"}):
        scratch = [run for run in runs if (run["start"], run["in_group"]) == ("random", in_group)]
        gains = [{metric: run["after"][metric] - run["before"][metric] for metric in RECOGNISED} for run in scratch]
        before, after = (_cells([run[when] for run in scratch]) for when in ("before", "after"))
        minutes = max(run["minutes"] for run in scratch)
        lines += [
            f"| random weights | {before} | | |",
            f"| then public contrast, M = {in_group} | {after} | {minutes:.0f} | {len(scratch)} |",
            f"| its gain over its own start, points | {_cells(gains)} | | |",
        ]
    for run in runs:
        if run["start"] != "random":
            lines += [
                f"| public data alone | {_cells([run['before']])} | | |",
                f"| then public contrast, M = {run['in_group']} | {_cells([run['after']])} | {run['minutes']:.0f} | 1 |",
            ]
    lines += [
        "",
        f"Percent. {_PROMISES} {found['steps']} steps of {found['groups']:,} records, each among M crops of photographs; a CNN "
        f"of width {_WIDTH}. Minutes are those of one core. {made_by('public-cifar10')}",
    ]
    return "\n".join(lines)


_TASKS = {"scratch": "shapes from scratch", "adaptation": "adaptation", "cifar10": "CIFAR-10"}


def tried() -> str:
    """What each way to use a noisy sum changes, in points, on each task and at each epsilon."""
    cells: dict[tuple[str, str, float], list[dict[str, Any]]] = {}  # what was tried, task, epsilon: its runs
    for run in figures("tried")["runs"]:
        cells.setdefault((run["tried"], run["task"], run["epsilon"]), []).append(run)
    # Of the runs that a cell's rate was searched by, that which ends best.
    best = {cell: max((run for run in runs if run["run"] == 0), key=_value) for cell, runs in cells.items()}
    columns = [(task, epsilon) for task in _TASKS for epsilon in (1, 8)]
    ways = list(dict.fromkeys(what for what, _, _ in cells))
    plain, *others = ways
    head = f"| | {' | '.join(f'{_TASKS[task]}, epsilon {epsilon}' for task, epsilon in columns)} |"
    rule = "|---" * (len(columns) + 1) + "|"
    lines = [
        head,
        rule,
        f"| {plain}, percent | {' | '.join(_cell(best.get((plain, *column)), 0, '.1f') for column in columns)} |",
    ]
    for what in others:
        row = [_cell(best.get((what, *column)), _value(best[plain, *column]), "+.1f") for column in columns]
        lines.append(f"| {what} | {' | '.join(row)} |")
    lines += [
        "",
        "Change in points of the mean of two figures: R@10 in both directions, or 200-NN and linear probe; in brackets the "
        "best of the learning rates that were tried in the cell. One run of each: changes of less than about 5 "
        "points in retrieval, and 1 in recognition, show nothing. "
        f"B = 512, constant rate. {made_by('tried')}",
    ]
    again = {cell: [run for run in runs if run["rate"] == best[cell]["rate"]] for cell, runs in cells.items()}
    repeated = [what for what in ways if all(len(again.get((what, *column), ())) > 1 for column in columns)]
    lines += ["", head, rule]
    for what in repeated:
        row = [spread(_value(run) for run in again[what, *column]) for column in columns]
        lines.append(f"| {what} | {' | '.join(row)} |")
    lines += ["", f"{len(again[plain, *columns[0]])} runs of each, percent. The first of them also chose the rate."]
    return "\n".join(lines)


def _value(run: dict[str, Any]) -> float:
    """The mean of the two figures that a task has."""
    return statistics.mean(run["after"].values())


def _cell(found: dict[str, Any] | None, less: float, form: str) -> str:
    return "" if found is None else f"{100 * (_value(found) - less):{form}} ({found['rate']:g})"


def _three(measured: dict[str, float]) -> str:
    return " / ".join(f"{100 * measured[metric]:.1f}" for metric in RECOGNISED)


def _gained(run: dict[str, Any]) -> str:
    gains = (100 * (run["after"][metric] - run["before"][metric]) for metric in RECOGNISED)
    return f"{_three(run['after'])} ({' / '.join(f'{gain:+.1f}' for gain in gains)})"


def _cells(measured: list[dict[str, float]]) -> str:
    return " | ".join(spread(one[metric] for one in measured) for metric in RECOGNISED)


def runs_at_best_rate(method: str, epsilon: float) -> list[dict[str, Any]]:
    """The runs of public contrast's benchmark with a method's best rate."""
    runs = figures("public-contrast")["runs"]
    kind = (method, epsilon, _best_rate(runs, method))
    return [run for run in runs if (run["method"], run["epsilon"], run["rate"]) == kind]


def _tuned(runs: list[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    """The first run with each rate, all with the same promise."""
    return [run for run in runs if (run["method"], run.get("epsilon", 1.0), run["run"]) == (method, 1.0, 0)]


def _best_rate(runs: list[dict[str, Any]], method: str) -> float:
    return max(_tuned(runs, method), key=lambda run: sum(run["after"].values()), default={"rate": None})["rate"]


def _noise(run: dict[str, Any]) -> float:
    """The standard deviation on the sum, in clip norms."""
    return float(run["plan"]["noise_multiplier"] * run["plan"]["sensitivity"])


def spread(shares: Iterable[float]) -> str:
    """Percent: a mean, and the standard deviation of several."""
    percent = [100 * share for share in shares]
    return f"{statistics.mean(percent):.1f}" + (f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else "")
