"""Writes the tables of the READMEs and of docs/results.md from the result files: `python -m benchmarks.readme`."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks import automatic_tables, moment_few, moment_tables, two_arrays
from benchmarks import peer_tables as page
from benchmarks.deployment_tables import (
    budget,
    cluster,
    faults,
    membership,
    memory,
    rounds,
    scaling,
    secure_sums,
    stores,
    torture,
)
from benchmarks.method_tables import forecast, logit, losses, objectives, table1
from benchmarks.recipe_tables import SITUATIONS, rehearsed, rungs
from benchmarks.record import RESULTS, figures, made_by
from benchmarks.utility_tables import ladder, noise_only, public_cifar10, public_contrast, runs_at_best_rate
from dpfed.evaluation.intervals import Interval, apart, wilson
from dpfed.privacy.promise import meaning, round_up
from dpfed.report.results import Result, results_of, shown

README = RESULTS.parents[1] / "README.md"
SHAPES_HELD_OUT = 1000  # test records of data.source = 'shapes', on which older results were measured
ERROR_BARS = "±: 95% intervals over the draw of held-out records. Another run draws other noise, which also moves the figures."


def first_and_last(run: dict[str, Any], metric: str) -> Result:
    """Returns a metric before training and at its end, with error bars.

    Older result files hold no error bars, but the number of held-out records. Then a fraction gets Wilson's interval, and its
    change gets the interval of two unrelated figures, which is wider than the interval of paired figures.

    Args:
        run: Figures of a run, with ``evaluations``.
        metric: Name of the metric.
    """
    (result,) = results_of([{**item, "interval": _interval(item)} for item in run["evaluations"] if item["name"] == metric])
    if result.change is None:
        change = apart(result.trained, result.trained_interval, result.untrained, result.untrained_interval)
        result = dataclasses.replace(result, change=change)
    return result


def _interval(item: dict[str, Any]) -> Interval:
    return item.get("interval") or wilson(item["value"], _queries(item["name"], item["protocol"]))


def _queries(name: str, protocol: str) -> int:
    """Returns the number of queries of a figure, from the sentence about its measurement (`protocol`)."""
    if match := re.search(r"(\d+) images against (\d+) captions", protocol):
        return int(match[1] if name.startswith("image_to_text") else match[2])
    return int(re.search(r"(\d+) held-out records", protocol)[1])


def with_error(share: float, interval: Interval | None) -> str:
    """Formats a fraction with its error bar for a table.

    Args:
        share: Fraction.
        interval: 95% interval of the fraction; ``None``: Wilson's interval for the held-out records of the shapes.
    """
    return shown(share, interval or wilson(share, SHAPES_HELD_OUT)).replace(" %", "%")


def quickstart() -> str:
    """Returns what the quickstart prints at its end, from its result file."""
    run = figures("quickstart")
    privacy = run["privacy"]
    lead = f"quickstart: epsilon {round_up(privacy['epsilon'])}, delta {round_up(privacy['delta'])}"
    lines = [f"{lead} ({privacy['accountant'].upper()})"]
    lines += textwrap.wrap(meaning(privacy["epsilon"], privacy["delta"], released="what this run released"), 104)
    lines.append(f"{'':<20}{'before':>14}{'after':>16}{'change':>20}")
    for metric in ("image_to_text_R@10", "text_to_image_R@10"):
        result = first_and_last(run, metric)
        before = shown(result.untrained, result.untrained_interval)
        after = shown(result.trained, result.trained_interval)
        lines.append(f"{metric:<20}{before:>14}{after:>16}{result.difference:>20}")
    return "\n".join(f"    {line}" for line in lines)


def results() -> str:
    """Returns the table of results of README.md."""
    lines = ["| epsilon | what | before | after |", "|---|---|---|---|"]
    for cost, words, start, mean, spread in adapted_by_the_better_method():
        lines.append(f"| {round_up(cost)} | adapted by {words}, R@10 | {start:.1f}% | {mean:.1f}% ± {spread:.1f} |")
    run = figures("cifar10-cpu")
    result = first_and_last(run, "linear_probe_accuracy")
    before = with_error(result.untrained, result.untrained_interval)
    after = with_error(result.trained, result.trained_interval)
    lines.append(f"| {round_up(run['privacy']['epsilon'])} | CIFAR-10 from scratch, linear probe | {before} | {after} |")
    return "\n".join([*lines, "", "±: standard deviation of three runs; for CIFAR-10, the 95% interval over held-out records."])


def adapted_by_the_better_method() -> list[tuple[float, str, float, float, float]]:
    """Returns the better of two methods for each epsilon at which a method has three runs.

    Returns:
        For each epsilon: the epsilon, the method, the mean R@10 of the public models, and the mean and standard deviation after
        adaptation, percent.
    """
    rows = []
    for epsilon in (1.0, 8.0):
        sides = []
        for method, words in (("public", "public contrast"), ("group", "DP-GCL")):
            runs = runs_at_best_rate(method, epsilon)
            if len(runs) > 2:
                after = [100 * run["after"]["image_to_text_R@10"] for run in runs]
                before = statistics.mean(100 * run["before"]["image_to_text_R@10"] for run in runs)
                sides.append((epsilon, words, before, statistics.mean(after), statistics.stdev(after)))
        rows += sorted(sides, key=lambda side: -side[3])[:1]
    return rows


def steps() -> str:
    """Returns the table of what a private step costs in time and memory."""
    lines = ["| time over the best non-private step: loop, layerwise | S = 4 | S = 16 |", "|---|---|---|"]
    step = figures("step")
    for model, result in step["overhead"].items():
        ratios = [
            [f"{result['ratio'][f'{engine}, {size}']:.2f}" for engine in ("loop", "layerwise")] for size in ("S = 4", "S = 16")
        ]
        cells = [f"{loop}, **{layerwise}**" for loop, layerwise in ratios]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    memory = [f"{figure['peak_mb']:.0f} MB at B = {int(batch):,}" for batch, figure in step["memory"].items()]
    lines += ["", f"Two CPU cores. Bold: what `auto` takes. Peak memory of a step of the small CNN: {', '.join(memory)}."]
    return "\n".join(lines)


def adaptation() -> str:
    """Returns the table of public models that were adapted privately, and the size of a step of ViT-B-32."""
    lines = ["| adapted to | R@10, image to text | R@10, text to image | epsilon |", "|---|---|---|---|"]
    runs = {"shapes-adapted": "captioned shapes in four new colours", "cifar10-adapted": "scenes of five new CIFAR-10 classes"}
    for name, words in runs.items():
        run = figures(name)
        cells = []
        for metric in ("image_to_text_R@10", "text_to_image_R@10"):
            result = first_and_last(run, metric)
            change = result.difference.replace("pts", "points")
            cells.append(f"{result.untrained:.1%} -> {result.trained:.1%} ({change})")
        lines.append(f"| {words} | {' | '.join(cells)} | {round_up(run['privacy']['epsilon'])} |")
    vit = figures("vit")
    lines += [
        "",
        f"ViT-B-32 at 224 pixels, rank 16 on q and v: {vit['trainable_parameters']:,} of {vit['parameters']:,} "
        "parameters are trained, "
        f"{vit['bytes_per_aggregate'] / 1e6:.1f} MB travel per aggregate, and a step of {vit['records']} records "
        f"in {vit['groups']} "
        f"groups takes {vit['peak_memory_mb'] / 1024:.1f} GB. {made_by('vit')}",
    ]
    return "\n".join(lines)


def gpu() -> str:
    """Returns the table of a whole private step on a GPU, beside the fastest step without privacy."""
    kept = json.loads((RESULTS / "gpu-step.json").read_text(encoding="utf-8"))
    heads = "model", "private step, ms", "records/s", "plain step, ms", "private / plain", "peak memory, GiB"
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for model, private, plain in _steps(kept["figures"]):
        figures = f"{private['ms']:.0f}", f"{private['records_per_second']:,.0f}", f"{plain['ms']:.0f}"
        lines.append(f"| {model} | {' | '.join(figures)} | {private['ms'] / plain['ms']:.2f} | {private['peak_gib']:.0f} |")
    said = "bf16, groups of 16; three views of an image, or an image and its text. Plain: channels last, in a CUDA graph."
    return "\n".join([*lines, "", f"{said} {kept['hardware']}. Commit {kept['commit'][:7]}."])


def _steps(figures: dict) -> Iterator[tuple[str, dict, dict]]:
    for model, ways in figures.items():
        if "private" in ways:
            yield model, ways["private"], min((ways[way] for way in ways if way != "private"), key=lambda row: row["ms"])


def institutions() -> str:
    """Returns the table of what it costs that the records stay at several institutions."""
    lines = ["| the same plan | R@10, image to text | R@10, text to image | epsilon |", "|---|---|---|---|"]
    for name, run in figures("institutions").items():
        metrics = [f"{direction}_R@10" for direction in ("image_to_text", "text_to_image")]
        cells = (with_error(run[metric], run.get("intervals", {}).get(metric)) for metric in metrics)
        lines.append(f"| {name} | {' | '.join(cells)} | {round_up(run['epsilon'])} |")
    return "\n".join([*lines, "", ERROR_BARS])


def methods() -> str:
    """Returns the table of all methods on the same records at the same epsilon and delta."""
    lines = [
        "| captioned shapes, epsilon 8 | R@10, image to text / text to image | sensitivity (C = 1) | noise per "
        "coordinate | time of a step |",
        "|---|---|---|---|---|",
    ]
    result = figures("methods")
    for run in result["methods"].values():
        best = run["R@10"][run["best"]]
        bars = run.get("intervals", {}).get(run["best"], {})
        cells = (with_error(best[f"{way}_R@10"], bars.get(f"{way}_R@10")) for way in ("image_to_text", "text_to_image"))
        sensitivity = "" if run["sensitivity"] is None else f"{run['sensitivity']:,.0f}"
        noise = "" if run["noise"] is None else f"{run['noise']:.2g}"
        lines.append(f"| {run['title']} | {' / '.join(cells)} | {sensitivity} | {noise} | {run['cost']:.1f} x |")
    lines += [
        "",
        "Batch clipping has the better of two learning rates. Each time is relative to `group` in the same command. "
        f"{result['scale'][0].upper()}{result['scale'][1:]} ±: 95% intervals over held-out records. {made_by('methods')}",
    ]
    return "\n".join(lines)


def fill(text: str, blocks: dict[str, str]) -> str:
    """Fills the marked parts of a page.

    Args:
        text: Text of the page.
        blocks: Content of each part, by the name in its mark.
    """
    for name, content in blocks.items():
        block = f"<!-- {name} -->\n\n{content}\n\n<!-- /{name} -->"
        text = re.sub(f"<!-- {name} -->(.*<!-- /{name} -->)?", lambda _, block=block: block, text, flags=re.DOTALL)
    return text


TABLES: dict[str, dict[str, Callable[[], str]]] = {  # by page, and by the name of a marked part
    "README.md": {"quickstart": quickstart, "results": results, "moments": moment_tables.moments},
    "cluster/README.md": {"cluster": cluster, "scaling": scaling},
    "docs/two-arrays.md": {"two-arrays-few": two_arrays.table_of_basis},
    "docs/results.md": {
        "steps": steps,
        "gpu": gpu,
        "methods": methods,
        "moments-sets": moment_tables.sets,
        "moments-bases": moment_tables.bases,
        "moments-ratios": moment_tables.ratios,
        "moments-few": moment_few.table,
        "moments-images": moment_tables.images,
        "two-arrays": two_arrays.table,
        "public": public_contrast,
        "public-cifar10": public_cifar10,
        "objectives": objectives,
        "losses": losses,
        "automatic": automatic_tables.trained,
        "automatic-hits": automatic_tables.hit,
        "logit": logit,
        "ladder": ladder,
        "noise-only": noise_only,
        **{f"recipe-{situation}": partial(rungs, situation) for situation in SITUATIONS},
        "recipe-large-image-text": rehearsed,
        "forecast": forecast,
        "adaptation": adaptation,
        "table1": table1,
        "peers-step": page.steps,
        "peers-clip": page.clip,
        "peers-sampling": page.sampling,
        "peers-federation": page.rounds,
        "peers-faster": page.faster,
        "peers-versions": page.versions,
        "federation": institutions,
        "rounds": rounds,
        "faults": faults,
        "torture": torture,
        "secure-sums": secure_sums,
        "stores": stores,
        "memory": memory,
        "budget": budget,
        "membership": membership,
    },
}


def main() -> None:
    """Fills the marked parts of all pages."""
    for name, blocks in TABLES.items():
        path = README.parent / name
        path.write_text(
            fill(path.read_text(encoding="utf-8"), {part: table() for part, table in blocks.items()}), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
