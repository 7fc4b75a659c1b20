"""Tables of what makes a private model better: public contrast against DP-GCL, and initialisations."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.record import figures, made_by
from dpfed.privacy.promise import round_up

_WIDTH = 16  # of the CNN in the studies on CIFAR-10
SHORT = ("knn200_accuracy", "linear_probe_accuracy")  # of recognition
RETRIEVED = ("image_to_text_R@10", "text_to_image_R@10")


def public_contrast() -> str:
    """Returns the table of R@10 over epsilon for DP-GCL and public contrast, each at its best learning rate."""
    result = figures("public-contrast")
    runs = result["runs"]
    rates = {method: _best_rate(runs, method) for method in ("group", "public")}
    lines = ["| epsilon | DP-GCL, groups of 4 | public contrast, M = 3 |", "|---|---|---|"]
    for epsilon in sorted({run["epsilon"] for run in runs}):
        sides = {method: runs_at_best_rate(method, epsilon) for method in rates}
        if all(sides.values()):
            cells = (
                " / ".join(spread(run["after"][metric] for run in side) for metric in RETRIEVED) for side in sides.values()
            )
            lines.append(f"| {round_up(epsilon)} | {' | '.join(cells)} |")
    before = {run["run"]: run["before"] for run in runs}
    starts = " / ".join(spread(values[metric] for values in before.values()) for metric in RETRIEVED)
    tried = {run["rate"] for run in runs}
    noises = (f"{_noise(_tuned(runs, method)[0]):.2f}" for method in rates)
    lines += [
        "",
        "Percent R@10, image to text / text to image, on captioned shapes in four colours that the public model never saw. "
        f"The public model alone reaches {starts}. All weights are trained, for {result['steps']} steps of "
        f"{result['passes']:,} passes, "
        f"at the best of {len(tried)} learning rates. The noise on each coordinate of the sum of 256 clipped gradients is "
        f"{' C and '.join(noises)} C at epsilon 1. ±: standard deviation over two or three runs, "
        f"each from a public model of its own. {made_by('public-contrast')}",
    ]
    return "\n".join(lines)


def ladder() -> str:
    """Returns the table of a small CNN's initialisations, and of what training adds to each."""
    result = figures("ladder")
    runs, names = result["runs"], {"random": "random", "procedural": "procedural", "shapes": "trained on rendered shapes"}
    methods = {"group": "DP-GCL, epsilon 1", "public": "public contrast, epsilon 1", "none": "no privacy"}
    lines = [f"| CIFAR-10, initialisation | before training | {' | '.join(methods.values())} |", "|---" * 5 + "|"]
    best = {method: _best_rate([run for run in runs if run["start"] == "random"], method) for method in methods}
    spreads = []
    for start in dict.fromkeys(run["start"] for run in runs):
        of_start = [run for run in runs if run["start"] == start]
        cells = [_pair(_mean(run["before"] for run in of_start))]
        for method in methods:
            chosen = [run for run in of_start if run["method"] == method and run["rate"] == best[method]]
            after = _mean(run["after"] for run in chosen)
            gains = [{metric: run["after"][metric] - run["before"][metric] for metric in SHORT} for run in chosen]
            cells.append(f"{_pair(after)} ({_pair(_mean(gains), '+.1f')})")
            spreads += [100 * statistics.stdev(gain[metric] for gain in gains) for metric in SHORT]
        lines.append(f"| {names[start]} | {' | '.join(cells)} |")
    lines += [
        f"| scattering features, nothing trained | {_pair(result['scattering'])} | | | |",
        "",
        "Percent, 200-NN / linear probe; in brackets the gain over the initialisation, mean of two runs (standard "
        "deviation at most "
        f"{max(spreads):.1f} points). A CNN of width {_WIDTH}, {result['steps']} steps of {result['passes']:,} passes each. "
        f"{made_by('ladder')}",
    ]
    return "\n".join(lines)


def _mean(measured: Iterable[dict[str, float]]) -> dict[str, float]:
    rows = list(measured)
    return {metric: statistics.mean(row[metric] for row in rows) for metric in SHORT}


def _pair(measured: dict[str, float], form: str = ".1f") -> str:
    return " / ".join(f"{100 * measured[metric]:{form}}" for metric in SHORT)


def public_cifar10() -> str:
    """Returns the sentences about all of CIFAR-10 at epsilon 1, with public photographs of other things."""
    runs = figures("public-cifar10")["runs"]
    scratch = [run for run in runs if run["start"] == "random" and run["in_group"] == 7]
    (further,) = (run for run in runs if run["start"] != "random")
    before, after = (_pair(_mean(run[when] for run in scratch)) for when in ("before", "after"))
    alone, on_top = (_pair(further[when]) for when in ("before", "after"))
    return (
        f"On CIFAR-10 at epsilon 1 (200-NN / linear probe, percent), public contrast goes from {before} to {after} from random "
        f"weights. The 1,000 public photographs alone reach {alone}, and private training on top of them {on_top}: "
        "no measurable "
        f"gain. {made_by('public-cifar10')}"
    )


def runs_at_best_rate(method: str, epsilon: float) -> list[dict[str, Any]]:
    """Returns the runs of a method at one epsilon with its best learning rate, from the benchmark of public contrast.

    Args:
        method: Method: ``group`` or ``public``.
        epsilon: Epsilon of the runs.
    """
    runs = figures("public-contrast")["runs"]
    kind = (method, epsilon, _best_rate(runs, method))
    return [run for run in runs if (run["method"], run["epsilon"], run["rate"]) == kind]


def _tuned(runs: list[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    """Returns the first run with each learning rate; all have the same epsilon and delta."""
    return [run for run in runs if (run["method"], run.get("epsilon", 1.0), run["run"]) == (method, 1.0, 0)]


def _best_rate(runs: list[dict[str, Any]], method: str) -> float:
    return max(_tuned(runs, method), key=lambda run: sum(run["after"].values()), default={"rate": None})["rate"]


def _noise(run: dict[str, Any]) -> float:
    """The standard deviation on the sum, in clip norms."""
    return float(run["plan"]["noise_multiplier"] * run["plan"]["sensitivity"])


def spread(shares: Iterable[float]) -> str:
    """Formats the mean of fractions in percent, with the standard deviation if there are several."""
    percent = [100 * share for share in shares]
    return f"{statistics.mean(percent):.1f}" + (f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else "")


def noise_only() -> str:
    """Returns the table of how often runs that learn nothing show a change beyond its interval."""
    result = figures("noise_only")
    said = "any figure beyond its ±"
    lines = [f"| runs on noise alone | {said} | {said} over the draw of records alone |", "|---|---|---|"]
    for kind, row in result["kinds"].items():
        runs, count = row["runs"], len(row["figures_of_a_run"])
        outside, narrow = (f"{row[key]} of {runs} ({row[key] / runs:.1%})" for key in ("outside", "outside_by_records_alone"))
        lines.append(f"| {kind}, {count} figures each | {outside} | {narrow} |")
    lines += ["", f"Small models from new weights each; the noise multiplier is {result['noise_multiplier']:,.0f}."]
    return "\n".join(lines)
