"""Writes the tables of the READMEs and of the guides in docs/ from the result files: `python -m benchmarks.readme`."""

from __future__ import annotations

import dataclasses
import re
import statistics
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.guides import GUIDES, there
from benchmarks.record import RESULTS, figures
from benchmarks.utility_tables import runs_at_best_rate
from dpfed.evaluation.intervals import Interval, apart, wilson
from dpfed.privacy.promise import meaning, round_up
from dpfed.report.results import Result, results_of, shown

README = RESULTS.parents[1] / "README.md"
SHAPES_HELD_OUT = 1000  # test records of data.source = 'shapes', on which older results were measured
ERROR_BARS = "±: 95% intervals over the draw of held-out records. Another run draws other noise, which also moves the figures."


def first_and_last(run: dict[str, Any], metric: str) -> Result:
    """A metric of the untrained and of the fully trained model, with error bars.

    Older result files hold no error bars, but the number of held-out records: a share then gets Wilson's interval, and the
    change that of two unrelated figures, which is wider than that of paired ones.
    """
    (result,) = results_of([{**item, "interval": _interval(item)} for item in run["evaluations"] if item["name"] == metric])
    if result.change is None:
        change = apart(result.trained, result.trained_interval, result.untrained, result.untrained_interval)
        result = dataclasses.replace(result, change=change)
    return result


def _interval(item: dict[str, Any]) -> Interval:
    return item.get("interval") or wilson(item["value"], _queries(item["name"], item["protocol"]))


def _queries(name: str, protocol: str) -> int:
    """How many queries a figure counts, from the sentence that says how it was measured."""
    if found := re.search(r"(\d+) images against (\d+) captions", protocol):
        return int(found[1] if name.startswith("image_to_text") else found[2])
    return int(re.search(r"(\d+) held-out records", protocol)[1])


def with_error(share: float, interval: Interval | None, name: str = "R@10") -> str:
    """A share with its error bar, as a table has it; without one, it is a share of the shapes' held-out records."""
    return shown(share, name, interval or wilson(share, SHAPES_HELD_OUT)).replace(" %", "%")


def quickstart() -> str:
    """What the quickstart prints at its end, from its result file."""
    run = figures("quickstart")
    privacy = run["privacy"]
    lead = f"quickstart: epsilon {round_up(privacy['epsilon'])}, delta {round_up(privacy['delta'])}"
    lines = [f"{lead} ({privacy['accountant'].upper()})"]
    lines += textwrap.wrap(meaning(privacy["epsilon"], privacy["delta"], released="what this run released"), 124)
    lines.append(f"{'':<20}{'before':>14}{'after':>16}{'change':>20}")
    for metric in ("image_to_text_R@10", "text_to_image_R@10"):
        result = first_and_last(run, metric)
        before = shown(result.untrained, metric, result.untrained_interval)
        after = shown(result.trained, metric, result.trained_interval)
        lines.append(f"{metric:<20}{before:>14}{after:>16}{result.difference:>20}")
    return "\n".join(f"    {line}" for line in lines)


def results() -> str:
    """The table of results."""
    lines = ["| what | before | after | change, points | epsilon | command |", "|---|---|---|---|---|---|"]
    run = figures("cifar10-cpu")
    result = first_and_last(run, "linear_probe_accuracy")
    before = with_error(result.untrained, result.untrained_interval)
    after = with_error(result.trained, result.trained_interval)
    epsilon, change = round_up(run["privacy"]["epsilon"]), result.difference.replace(" pts", "")
    what = "CIFAR-10 from scratch, linear probe"
    lines.append(f"| {what} | {before} | {after} | {change} | {epsilon} | `benchmarks.runs cifar10-cpu` |")
    for cost, words, start, mean, spread in adapted_by_the_better_method():
        what, change = f"adapted by {words}, R@10, image to text", f"{mean - start:+.1f}"
        row = f"| {what} | {start:.1f}% | {mean:.1f}% ± {spread:.1f} | {change} | {round_up(cost)} |"
        lines.append(f"{row} `benchmarks.public_contrast` |")
    adapted = (
        "Adapted: mean and standard deviation of three runs, each from a public model of its own "
        "([docs/methods.md](docs/methods.md#public-contrast))."
    )
    return "\n".join([*lines, "", f"{ERROR_BARS} {adapted}"])


def adapted_by_the_better_method() -> list[tuple[float, str, float, float, float]]:
    """Of each epsilon with three runs: method, mean R@10 of the public models, mean and standard deviation after adaptation."""
    found = []
    for epsilon in (0.25, 1.0, 8.0):
        sides = []
        for method, words in (("public", "public contrast"), ("group", "DP-GCL")):
            runs = runs_at_best_rate(method, epsilon)
            if len(runs) > 2:
                after = [100 * run["after"]["image_to_text_R@10"] for run in runs]
                before = statistics.mean(100 * run["before"]["image_to_text_R@10"] for run in runs)
                sides.append((epsilon, words, before, statistics.mean(after), statistics.stdev(after)))
        found += sorted(sides, key=lambda side: -side[3])[:1]
    return found


def steps() -> str:
    """What a private step costs in time and memory."""
    lines = ["| time of a private step over the best non-private one (2 CPU cores) | S = 4 | S = 16 |", "|---|---|---|"]
    step = figures("step")
    for model, result in step["overhead"].items():
        for engine in ("loop", "layerwise"):
            ratios = (f"{result['ratio'][f'{engine}, S = {size}']:.2f}" for size in (4, 16))
            lines.append(f"| {model}, {engine} engine | {' | '.join(ratios)} |")
        chosen = (f"{result['chosen_engine'][f'S = {size}']}" for size in (4, 16))
        lines.append(f"| {model}, the automatic choice | {' | '.join(chosen)} |")
    memory = [f"{figure['peak_mb']:.0f} MB at B = {int(batch):,}" for batch, figure in step["memory"].items()]
    lines += ["", f"Peak memory of a step of the small CNN: {', '.join(memory)}."]
    return "\n".join(lines)


def adaptation() -> str:
    """Public models adapted privately, and what a step of ViT-B-32 is."""
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
        f"ViT-B-32 at 224 pixels with rank 16 on q and v trains {vit['trainable_parameters']:,} of {vit['parameters']:,} "
        f"parameters, so {vit['bytes_per_aggregate'] / 1e6:.1f} MB travel per aggregate. A step of {vit['records']} records in "
        f"{vit['groups']} groups fits into {vit['peak_memory_mb'] / 1024:.1f} GB on two cores; its gradients differ from "
        f"plain autograd by at most {vit['largest_relative_error_of_a_group']:.0e} (relative).",
    ]
    return "\n".join(lines)


def cluster() -> str:
    """What a cluster costs and gains."""
    result = figures("cluster")
    overhead, speedup = result["overhead"]["ratio"] - 1, 1 / result["speedup"]["ratio"]
    of_ray, ceiling = 1 / statistics.median(result["speedup_of_ray"]["ratio_of_rounds"]), figures("ceiling")["ratio"]
    lines = [
        "| two CPU cores, the quickstart's plan | |",
        "|---|---|",
        f"| time of a step through Ray with one worker, against the plain loop | {overhead:+.1%} |",
        f"| groups per second: two workers over one worker, one thread each | {speedup:.2f} x |",
        f"| the same through Ray, whose services share the two cores | {of_ray:.2f} x |",
        f"| the same for two processes that share nothing (the most that is possible) | {ceiling:.2f} x |",
    ]
    for batch, figure in result["memory"].items():
        lines.append(f"| peak memory of each of two workers at B = {int(batch):,} | {max(figure['peak_mb'])} MB |")
    return "\n".join(lines)


def institutions() -> str:
    """What being apart costs, and how long a round takes."""
    lines = ["| the same plan | R@10, image to text | R@10, text to image | epsilon |", "|---|---|---|---|"]
    for name, run in figures("institutions").items():
        metrics = [f"{direction}_R@10" for direction in ("image_to_text", "text_to_image")]
        found = (with_error(run[metric], run.get("intervals", {}).get(metric)) for metric in metrics)
        lines.append(f"| {name} | {' | '.join(found)} | {round_up(run['epsilon'])} |")
    return "\n".join([*lines, "", ERROR_BARS])


def methods() -> str:
    """All methods on the same records at the same promise."""
    lines = [
        "| captioned shapes | epsilon | R@10, image to text | R@10, text to image | sensitivity (C = 1) | "
        "noise per coordinate | time of a step |",
        "|---|---|---|---|---|---|---|",
    ]
    result = figures("methods")
    for run in result["methods"].values():
        best = run["R@10"][run["best"]]
        bars = run.get("intervals", {}).get(run["best"], {})
        found = (with_error(best[f"{way}_R@10"], bars.get(f"{way}_R@10")) for way in ("image_to_text", "text_to_image"))
        sensitivity = "" if run["sensitivity"] is None else f"{run['sensitivity']:,.0f}"
        noise = "" if run["noise"] is None else f"{run['noise']:.2g}"
        promise = "none" if run["noise"] is None else round_up(run["epsilon"]) if run["epsilon"] else "claimed, does not hold"
        lines.append(f"| {run['title']} | {promise} | {' | '.join(found)} | {sensitivity} | {noise} | {run['cost']:.1f} x |")
    tried = {run["title"]: [setting.removeprefix("rate ") for setting in run["R@10"]] for run in result["methods"].values()}
    choosers = [title for title, rates in tried.items() if len(rates) > 1]
    rates = " and ".join(dict.fromkeys(rate for title in choosers for rate in tried[title]))
    lines += [
        "",
        f"For {', '.join(choosers)}, the table has the better of two learning rates ({rates}). The sound form of DPCL adds "
        "little noise to its gradients, but these gradients pull towards embeddings that are mostly noise. "
        f"{result['scale'][0].upper()}{result['scale'][1:]} {ERROR_BARS}",
    ]
    return "\n".join(lines)


def fill(path: Path, blocks: dict[str, str]) -> None:
    """Fills those of the parts that a file has."""
    text = path.read_text(encoding="utf-8")
    for name, content in blocks.items():
        block = f"<!-- {name} -->\n\n{content}\n\n<!-- /{name} -->"
        text = re.sub(f"<!-- {name} -->(.*<!-- /{name} -->)?", lambda _, block=block: block, text, flags=re.DOTALL)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Fills the marked parts of the READMEs and of the guides."""
    root = README.parent
    fill(README, {"quickstart": quickstart(), "results": results()})
    fill(root / "cluster" / "README.md", {"cluster": cluster()})
    fill(root / "docs" / "towers.md", {"adaptation": adaptation()})
    fill(root / "docs" / "results.md", {"steps": steps()})
    fill(root / "docs" / "federation.md", there({"federation": ("institutions", institutions)}))
    fill(root / "docs" / "methods.md", there({"methods": ("methods", methods)}))
    for guide, blocks in GUIDES.items():
        fill(root / "docs" / guide, there(blocks))


if __name__ == "__main__":
    main()
