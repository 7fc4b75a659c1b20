"""The tables of the guides in docs/, from the result files; `python -m benchmarks.readme` writes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.peers import page
from benchmarks.recipe_tables import rehearsed, rungs
from benchmarks.recipes import LADDERS
from benchmarks.record import RESULTS, figures, made_by
from benchmarks.utility_tables import ladder, public_cifar10, public_contrast, public_sets, tried
from dpfed.evaluation.intervals import wilson
from dpfed.privacy.promise import round_down, round_up
from dpfed.report.results import label

Blocks = dict[str, tuple[str, Callable[[], str]]]  # by the name of its marks: the result file, and what writes it


def there(blocks: Blocks) -> dict[str, str]:
    """Those blocks whose result files are there."""
    return {name: write() for name, (result, write) in blocks.items() if (RESULTS / f"{result}.json").exists()}


def faults() -> str:
    """What each fault did to a step, in each mode."""
    steps = figures("federation-faults")["steps"]
    lines = ["| what happened | " + " | ".join(steps) + " |", "|---" * (len(steps) + 1) + "|"]
    names = [step["fault"] for step in steps["central"] if step["fault"]]
    for fault in names:
        cells = (_fate(next(step for step in mode if step["fault"] == fault)) for mode in steps.values())
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    every = [step for mode in steps.values() for step in mode]
    if not all(step["charged"][0] for step in every):
        raise SystemExit("a step was not charged: benchmarks/results/federation-faults.json")
    undisturbed = [step["noise"] for step in every if step["outcome"] == "collected" and not step["fault"]]
    lines += [
        "",
        "Three sites, real processes over TLS, `drops = 1`, `colluders = 1`. The fault happens to the first site, to another "
        "site's SuperNode, or to the server. Each cell says how many sites' sums the step used, out of the sites that were "
        "there: the third site joins late, and a killed site needs some time to come back. Each cell also gives the variance "
        "of the noise in the released sum, as measured, over the planned variance (standard deviation about 0.01). Without a "
        f"fault this ratio was at least {min(undisturbed):.2f}. `distributed` and `secure` discard a step with fewer than two "
        "sites. `secure` also discards a step in which a site that it counts on sends an invalid sum. Every step "
        "was charged in the run's ledger.",
    ]
    return "\n".join(lines)


_SITES = 3  # of benchmarks.federation_faults


def _fate(step: dict[str, Any]) -> str:
    if step["outcome"] == "discarded":
        return "discarded, charged"
    there = _SITES - sum(why.startswith(("not there", "it has left")) for why in step["missing"].values())
    return f"{len(step['arrived'])} of {there} sites, noise {step['noise']:.2f}"


def rounds() -> str:
    """How long a round takes, and what it consists of."""
    lines = ["| 45 MB out and back, three sites | central | secure |", "|---|---|---|"]
    result = figures("federation")
    modes = [result[mode] for mode in ("central", "secure")]
    for name, carrier in (
        ("a round, over the sum of: an empty round, Flower's bare transfer, all computing", "flower"),
        ("the same, with a transfer through TLS alone instead of Flower's", "tls"),
    ):
        ratios = [f"{mode['ratio'][carrier]:.2f}" for mode in modes]
        lines.append(f"| {name} | {' | '.join(ratios)} |")
    shares = ("empty", "flower", "compute", "apply")
    names = (
        "an empty round",
        "Flower's transfer of the vectors",
        "gradients at the slowest site",
        "noise and update at the server",
    )
    for name, share in zip(names, shares, strict=True):
        part = (mode["seconds"].get(share, mode["seconds_at_server"].get(share)) / mode["seconds"]["round"] for mode in modes)
        lines.append(f"| {name}, part of a round | {' | '.join(f'{value:.0%}' for value in part)} |")
    hours = " and ".join(f"{mode['hours_for_1200_rounds']:.1f}" for mode in modes)
    lines += ["", f"At that rate T = 1,200 rounds take {hours} hours here, on two cores that all parties share."]
    return "\n".join(lines)


def logit() -> str:
    """What clipping similarities costs."""
    result = figures("logit")
    fast, price = result["fast_path"], result["price_of_the_bound"]
    lines = [
        f"The exact path gives the same sum as a loop over all pairs (relative difference {fast['relative_error']:.0e}, half "
        f"of the pairs clipped). It is **{fast['times_as_fast']:.0f} times** as fast at B = {fast['records']} on the paper's "
        "embedding net.",
        "",
        "| time of a step over a step of group clipping (S = 16), same records | " + " | ".join(result["beside_groups"]) + " |",
        "|---" * (len(result["beside_groups"]) + 1) + "|",
        "| B | " + " | ".join(f"{net['records']:,}" for net in result["beside_groups"].values()) + " |",
    ]
    for method in next(iter(result["beside_groups"].values()))["over_group"]:
        cells = (net["over_group"].get(method) for net in result["beside_groups"].values())
        lines.append(f"| {method} | {' | '.join('' if cell is None else f'{cell:.1f} x' for cell in cells)} |")
    lines += ["", "| linear path on the small CNN | time | memory |", "|---|---|---|"]
    smallest = next(iter(result["growth"].values()))
    for batch, step in result["growth"].items():
        lines.append(
            f"| B = {int(batch):,} | {step['seconds'] / smallest['seconds']:.2f} x | "
            f"{step['peak_mb'] - step['before_mb']:,} MB for the step |"
        )
    lines += [
        "",
        f"| bound over norm, {price['records']} pictures, the paper's net | 10% | median | 90% | length of the sum | cosine |",
        "|---|---|---|---|---|---|",
    ]
    for when, found in price.items():
        if isinstance(found, dict):
            ratios = " | ".join(f"{ratio:.2f}" for ratio in found["bound_over_norm"].values())
            lines.append(f"| {when} | {ratios} | {found['length_of_sum']:.2f} | {found['cosine_of_sums']:.3f} |")
    lines += ["", made_by("logit")]
    return "\n".join(lines)


def membership() -> str:
    """What the attacks find, with and without privacy."""
    result = figures("membership")
    audits = {name: audit for name, audit in result.items() if isinstance(audit, dict)}
    lines = [
        "| attack | without privacy: TPR at 1% FPR | AUC | epsilon 8: TPR at 1% FPR | AUC |",
        "|---|---|---|---|---|",
    ]
    trained = [[one for one in audit["outcomes"] if one["weights"] == "trained"] for audit in audits.values()]
    for outcomes in zip(*trained, strict=True):
        cells = []
        for one in outcomes:
            rate = one["points"][0]["tpr"]
            cells += [f"{rate['value']:.1%} ({rate['low']:.1%} to {rate['high']:.1%})", f"{one['auc']['value']:.2f}"]
        lines.append(f"| {outcomes[0]['title']} | {' | '.join(cells)} |")
    untrained = [one["auc"]["value"] for audit in audits.values() for one in audit["outcomes"] if one["weights"] == "untrained"]
    shown = {name: max(one["epsilon_shown"] for one in audit["outcomes"]) for name, audit in audits.items()}
    lines += [
        "",
        f"On the weights before training, AUCs are between {min(untrained):.2f} and {max(untrained):.2f}. The epsilon shown is "
        f"at most {round_down(shown['none'])} without privacy, and at most {round_down(shown['group'])} with it.",
    ]
    return "\n".join(lines)


def noise_injection() -> str:
    """Accuracy with noise on the weights."""
    result = figures("noise-injection")
    levels = list(next(iter(result["accuracy"].values())))
    lines = ["| test accuracy, percent; noise on the weights: | " + " | ".join(levels) + " |", "|---" * (len(levels) + 1) + "|"]
    for network, row in result["accuracy"].items():
        lines.append(f"| {network} | {' | '.join(f'{row[level]:.1f}' for level in levels)} |")
    setting = f"{result['train']:,} CIFAR-10 images, {result['epochs']} passes, learning rate {result['learning_rate']:g}."
    lines += ["", f"{setting} {made_by('noise-injection')}"]
    return "\n".join(lines)


def table1() -> str:
    """The DP-GCL paper's Table 1 at the small scale, a table for each promise."""
    return "\n\n".join(_beside_published(f"table1-cifar10-cpu-epsilon{epsilon}", epsilon) for epsilon in (10, 1))


def _beside_published(name: str, epsilon: float) -> str:
    result = figures(name)
    metrics = list(dict.fromkeys(row["metric"] for row in result["rows"]))
    lines = [
        f"| epsilon {round_up(epsilon)} | " + " | ".join(f"{label(metric)}, ours | paper" for metric in metrics) + " |",
        "|---" * (2 * len(metrics) + 1) + "|",
    ]
    for method in dict.fromkeys(row["name"] for row in result["rows"]):
        rows = {row["metric"]: row for row in result["rows"] if row["name"] == method}
        cells = (_percent(rows[metric][whose]) for metric in metrics for whose in ("ours", "published"))
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{result['scale']} {_precision(result['rows'], 2000)}"])


def objectives() -> str:
    """What other losses and BatchNorm with anchors give, before and after."""
    result = figures("objectives-cifar10-cpu")
    values = {(row["name"], row["metric"]): row["ours"] for row in result["rows"]}
    metrics = list(dict.fromkeys(metric for _, metric in values))
    lines = [
        "| CIFAR-10, epsilon 10 | " + " | ".join(f"{label(metric)} before | after" for metric in metrics) + " |",
        "|---" * (2 * len(metrics) + 1) + "|",
    ]
    for name in (name for name, metric in values if metric == metrics[0] and not name.endswith(", before")):
        cells = (f"{values[which, metric]:.1f}" for metric in metrics for which in (f"{name}, before", name))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{result['scale']} {_precision(result['rows'], 5000)}"])


def recipe() -> str:
    """Our own recipe beside the paper's, before and after training, and how far above it ends."""
    rows = figures("recipe-cifar10-cpu")["rows"]
    values = {(row["name"], row["epsilon"], row["metric"]): row["ours"] for row in rows}
    columns = list(dict.fromkeys((epsilon, metric) for _, epsilon, metric in values))
    lines = [
        "| before training, after training | "
        + " | ".join(f"{label(metric)}, epsilon {round_up(epsilon)}" for epsilon, metric in columns)
        + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name in dict.fromkeys(row["name"] for row in rows if not row["name"].endswith(", before")):
        cells = (f"{values[f'{name}, before', *column]:.1f}, {values[name, *column]:.1f}" for column in columns)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    ahead = (f"{values['recipe', *column] - values['DP-GCL', *column]:+.1f}" for column in columns)
    lines.append(f"| recipe minus DP-GCL, after | {' | '.join(ahead)} |")
    return "\n".join([*lines, "", _precision(rows, 10_000)])


def _precision(rows: list[dict[str, Any]], records: int) -> str:
    """How far the figures of a table may be off, at most: by their own intervals, or those of so many held-out records."""
    ends = []
    for ours, found in ((row["ours"], row.get("interval")) for row in rows if row["ours"] is not None):
        low, high = found or (100 * end for end in wilson(ours / 100, records))
        ends.append(max(high - ours, ours - low))
    return (
        f"Our figures come from {records:,} held-out records: 95% intervals over the draw of these records reach at most "
        f"± {math.ceil(10 * max(ends)) / 10:.1f} points. Another run draws other noise, which also moves the figures. Smaller "
        "differences show nothing."
    )


def _percent(value: Any) -> str:
    return "" if value is None else f"{value:.1f}"


def budget() -> str:
    """Steps that fit into a lifetime budget by its filter, and by what needs plans that were fixed before."""
    names = ("budget", "sampling rate", "noise multiplier", "filter", "best order, if fixed", "PLD, if fixed")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in figures("budget")["rows"]:
        pld = "not resolved" if row["pld"] is None else f"{row['pld']:,}"
        lines.append(
            f"| ({row['epsilon']}, {round_up(row['delta'])}) | {row['q']:g} | {row['sigma']:g} | {row['filter']:,} | "
            f"{row['rdp']:,} | {pld} |"
        )
    return "\n".join([*lines, "", f"Numbers of steps. {made_by('budget')}"])


def forecast() -> str:
    """Whether forecasts order runs as these come out."""
    result = figures("forecast")
    lines = ["| plan | gain, points | reach on procedural images | reach on similar records |", "|---|---|---|---|"]
    for data in dict.fromkeys(row["data"] for row in result["plans"].values()):
        rows = {name: row for name, row in result["plans"].items() if row["data"] == data}
        for name, row in sorted(rows.items(), key=lambda item: -item[1]["gain"]):
            told = (row["forecast"].get(public) for public in ("procedural", "shapes"))
            reaches = ("" if one is None else f"{one['reach']:.1f} of {one['steps']}" for one in told)
            lines.append(f"| {name} | {100 * row['gain']:+.1f} | {' | '.join(reaches)} |")
    lines += ["", "| rank correlation of reach and gain | plans | |", "|---|---|---|"]
    for name, found in result["agreement"].items():
        misses = ", ".join(f"{plan} {places:+.0f}" for plan, places in found["misses"].items())
        correlation = f"{found['rank_correlation']:.2f}" + (f" (misses: {misses})" if misses else "")
        lines.append(f"| {name} | {found['plans']} | {correlation} |")
    took = [one["took"] for row in result["plans"].values() for one in row["forecast"].values()]
    lines += [
        "",
        "Names: e is epsilon, s the group size, b the batch, t the number of steps, n the number of records. The first plan of "
        "each kind is what the others differ from. The gain is the mean change of two headline figures on held-out records. "
        "Each plan was trained once, so plans whose gains are close may change places. A miss is a plan that was ranked at "
        "least two places too high (+) or too low (-) among its kind. Over all kinds the models, records and figures differ, "
        f"and a reach does not know that. A forecast took {min(took):.0f} to {max(took):.0f} seconds, on one busy core. "
        f"{made_by('forecast')}",
    ]
    return "\n".join(lines)


def torture() -> str:
    """What was done to runs, and what they lost by it."""
    lines = ["| part | what was done to it | lost or under-reported |", "|---|---|---|"]
    local = figures("torture-machine")
    others = "; ".join(f"{what}: {count} times" for what, count in local["others"].items())
    lines.append(
        f"| a local run | {sum(local['deaths'].values())} times killed at a random moment; {others} | {_lost(local)} |"
    )
    for part, words in {"cluster": "a Ray job of two workers", "federation": "a federation"}.items():
        found = figures(f"torture-{part}")
        lines.append(f"| {words} | {'; '.join(sorted(fault['what'] for fault in found['faults']))} | {_lost(found)} |")
    return "\n".join(lines)


def stores() -> str:
    """What large stores cost to open, to start a worker with, and to import."""
    result = figures("stores")
    columns = ("records", "on disk", "opening", "memory", "a worker's start", "its copy of keys, before")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for size, found in result["opening"].items():
        opened, mapped, copied = found["opened"], found["start"]["mapped"], found["start"]["copied"]
        cells = (
            f"{int(size):,}",
            f"{found['disk_bytes'] / 1e9:.2g} GB",
            f"{opened['seconds']:.2f} s, again {1000 * opened['seconds_again']:.0f} ms",
            f"{opened['peak']:.0f} MB",
            f"{1000 * mapped['seconds']:.1f} ms",
            f"{copied['seconds']:.1f} s, {copied['anonymous_megabytes']:,.0f} MB",
        )
        lines.append(f"| {' | '.join(cells)} |")
    sharded = result["sharded"]
    opened = sharded["workers"].values()
    own, every = (f"{one['open']:,} in {1000 * one['seconds_again']:.0f} ms ({one['peak']:.0f} MB)" for one in opened)
    lines += [
        "",
        "Images of one pixel. The first opening in a process imports a library; memory is that of the whole process. Of "
        f"{sharded['records']:,} records in {sharded['shards']} shards, one of {sharded['shards']} workers opens {own}; a "
        f"worker that is alone opens all {every}.",
        "",
        "| import | workers | MB/s | records/s | time over reading the bytes |",
        "|---|---|---|---|---|",
    ]
    for kind, found in result["importing"].items():
        for name, row in found["imports"].items():
            how, workers = name.rsplit(", ", 1)
            rates = found["bytes"] / 1e6 / row["seconds"], found["records"] / row["seconds"]
            lines.append(f"| {kind}, {how} | {workers} | {rates[0]:.0f} | {rates[1]:,.0f} | {row['over_reading_cold']:.0f} x |")
    archives = result["importing"]["webdataset"]
    lines += [
        "",
        f"JPEG files of 224 pixels, {archives['bytes'] / archives['records'] / 1000:.0f} kB each; {archives['cores']} cores "
        f"that other work used as well. The disk gave {archives['bytes'] / 1e6 / archives['reading']['cold']:,.0f} MB/s. "
        f"{made_by('stores')}",
    ]
    return "\n".join(lines)


def secure_sums() -> str:
    """What a step of secure sums costs the coordinator and a site, at many numbers of sites."""
    result = figures("secure-scale")
    lines = [
        "| sites | who may leave, and does | the coordinator | a site | a site that is new |",
        "|---|---|---|---|---|",
    ]
    for sites, cases in result["sites"].items():
        for name, case in cases.items():
            site = case["site"]
            after, first = site["mask"] + site.get("reveal", 0.0), site["first offer"]
            leave = name.replace("leaves", "does").replace("leave", "do")
            who = f"{case['drops']} may leave; {leave}" if case["drops"] else name
            lines.append(
                f"| {int(sites):,} | {who} | {case['server']['total']:.3g} s | {1000 * (site['offer'] + after):.0f} ms | "
                f"{1000 * (first + after):.0f} ms |"
            )
    what = f"Seconds of one core, for {result['numbers']:,} numbers and without gradients and network."
    lines += ["", f"{what} {made_by('secure-scale')}"]
    return "\n".join(lines)


def _lost(found: dict[str, Any]) -> str:
    return f"{len(found['wrong'])} times" if found["wrong"] else "nothing"


GUIDES: dict[str, Blocks] = {
    "data.md": {"stores": ("stores", stores)},
    "budget.md": {"budget": ("budget", budget)},
    "forecast.md": {"forecast": ("forecast", forecast)},
    "federation.md": {"faults": ("federation-faults", faults), "rounds": ("federation", rounds)},
    "secure-aggregation.md": {"scale": ("secure-scale", secure_sums)},
    "faults.md": {"torture": ("torture-federation", torture)},
    "logit-dp.md": {"logit": ("logit", logit)},
    "audit.md": {"membership": ("membership", membership)},
    "normalisation.md": {"noise-injection": ("noise-injection", noise_injection)},
    "methods.md": {
        "objectives": ("objectives-cifar10-cpu", objectives),
        "public": ("public-contrast", public_contrast),
        "public-sets": ("public-sets", public_sets),
        "public-cifar10": ("public-cifar10", public_cifar10),
        "tried": ("tried", tried),
    },
    "starts.md": {"ladder": ("ladder", ladder)},
    "recipes.md": {
        **{situation: ("recipes", partial(rungs, situation)) for situation in LADDERS},
        "large-image-text": ("recipes", rehearsed),
    },
    "peers.md": {
        "peers-step": ("peers", page.steps),
        "peers-clip": ("peers", page.clip),
        "peers-sampling": ("peers", page.sampling),
        "peers-federation": ("peers", page.rounds),
        "peers-faster": ("peers", page.faster),
    },
    "reproduce.md": {
        "table1": ("table1-cifar10-cpu-epsilon1", table1),
        "recipe": ("recipe-cifar10-cpu", recipe),
    },
}
