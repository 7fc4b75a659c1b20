"""Tables of federations, clusters, record stores, budgets and attacks, for docs/results.md and cluster/README.md."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.record import figures, made_by
from dpfed.cluster.estimate import Machines, estimate, largest_share
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import round_up


def faults() -> str:
    """Returns the table of what each fault did to a step, in each trust mode."""
    steps = figures("federation-faults")["steps"]
    lines = ["| what happened | " + " | ".join(steps) + " |", "|---" * (len(steps) + 1) + "|"]
    names = [step["fault"] for step in steps["central"] if step["fault"]]
    alike: dict[str, list[str]] = {}  # faults by what they did
    for fault in names:
        cells = (_fate(next(step for step in mode if step["fault"] == fault)) for mode in steps.values())
        alike.setdefault(" | ".join(cells), []).append(fault)
    lines += [f"| {'; '.join(faults)} | {cells} |" for cells, faults in alike.items()]
    every = [step for mode in steps.values() for step in mode]
    if not all(step["charged"][0] for step in every):
        raise SystemExit("a step was not charged: benchmarks/results/federation-faults.json")
    least = min(step["noise"] for step in every if step["outcome"] == "collected")
    lines += [
        "",
        "Three sites, real processes over TLS, `drops = 1`, `colluders = 1`. A cell says how many of the "
        "connected sites' sums the "
        "step used; the third site joins late. Every step was charged in the run's ledger. The measured variance "
        "of the noise in a "
        f"released sum was at least {least:.2f} times the planned one.",
    ]
    return "\n".join(lines)


_SITES = 3  # of benchmarks.federation_faults


def _fate(step: dict[str, Any]) -> str:
    if step["outcome"] == "discarded":
        return "discarded"
    there = _SITES - sum(why.startswith(("not there", "it has left")) for why in step["missing"].values())
    return f"{len(step['arrived'])} of {there}"


def rounds() -> str:
    """Returns the sentences about the time of a round, over the time of its parts."""
    modes = [figures("federation")[name] for name in ("central", "secure")]
    flower, tls = (" and ".join(f"{mode['ratio'][carrier]:.2f}" for mode in modes) for carrier in ("flower", "tls"))
    hours = " and ".join(f"{mode['hours_for_1200_rounds']:.1f}" for mode in modes)
    return (
        f"A round (`central` and `secure`, three sites, 45 MB each way) takes {flower} times the sum of an empty "
        "round, Flower's bare "
        f"transfer and all computing; {tls} times with a bare TLS transfer instead. 1,200 rounds take {hours} "
        f"hours on two shared cores. {made_by('federation')}"
    )


def membership() -> str:
    """Returns the table of what the membership attacks find, with and without privacy."""
    result = figures("membership")
    audits = {name: audit for name, audit in result.items() if isinstance(audit, dict)}
    gone = ("encoder-vector", "encoder-set")  # measured once; dpfed has them no more
    lines = ["| attack | without privacy: TPR at 1% FPR | AUC | epsilon 8: TPR at 1% FPR | AUC |", "|---|---|---|---|---|"]
    trained = [
        [outcome for outcome in audit["outcomes"] if outcome["weights"] == "trained" and outcome["attack"] not in gone]
        for audit in audits.values()
    ]
    for outcomes in zip(*trained, strict=True):
        cells = []
        for outcome in outcomes:
            rate = outcome["points"][0]["tpr"]
            cells += [f"{rate['value']:.1%} ({rate['low']:.1%} to {rate['high']:.1%})", f"{outcome['auc']['value']:.2f}"]
        lines.append(f"| {outcomes[0]['title']} | {' | '.join(cells)} |")
    untrained = [row["auc"]["value"] for audit in audits.values() for row in audit["outcomes"] if row["weights"] == "untrained"]
    lines += [
        "",
        f"On the weights before training, AUCs are between {min(untrained):.2f} and {max(untrained):.2f}. "
        f"{made_by('membership')}",
    ]
    return "\n".join(lines)


_BUDGETS = ((3, 1e-6), (10, 1e-6))
_PLANS = ((0.034, 2), (0.003, 0.8), (1, 10))  # rate and multiplier


def budget() -> str:
    """Returns the table of the steps that fit into a lifetime budget: by its filter, and by PLD, which needs a fixed plan."""
    names = ("budget", "sampling rate", "noise multiplier", "filter", "PLD, plan fixed beforehand")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in figures("budget")["rows"]:
        if (row["epsilon"], row["delta"]) in _BUDGETS and (row["q"], row["sigma"]) in _PLANS:
            promise = f"({row['epsilon']}, {round_up(row['delta'])})"
            lines.append(f"| {promise} | {row['q']:g} | {row['sigma']:g} | {row['filter']:,} | {row['pld']:,} |")
    return "\n".join([*lines, "", f"Numbers of steps. {made_by('budget')}"])


def torture() -> str:
    """Returns the table of the faults that runs met, and of what the runs lost or under-reported."""
    lines = ["| part | fault | lost or under-reported |", "|---|---|---|"]
    local = figures("torture-machine")
    others = "; ".join(f"{what}: {count} times" for what, count in local["others"].items())
    lines.append(
        f"| a local run | {sum(local['deaths'].values())} times killed at a random moment; {others} | {_lost(local)} |"
    )
    for part, words in {"cluster": "a Ray job of two workers", "federation": "a federation"}.items():
        result = figures(f"torture-{part}")
        lines.append(f"| {words} | {'; '.join(sorted(fault['what'] for fault in result['faults']))} | {_lost(result)} |")
    return "\n".join(lines)


def stores() -> str:
    """Returns the sentences about the time to open and to import large stores."""
    result = figures("stores")
    size, largest = list(result["opening"].items())[-1]
    opened = largest["opened"]
    rates = []
    for kind, case in result["importing"].items():
        decoded, raw = (case["records"] / case["imports"][f"{how}, 1"]["seconds"] for how in ("decoded", "not decoded"))
        rates.append(f"{kind} {decoded:,.0f} ({raw:,.0f} without decoding)")
    return (
        f"A store of {int(size):,} records of one pixel ({largest['disk_bytes'] / 1e9:.2g} GB) opens in "
        f"{opened['seconds']:.2f} s, and "
        f"again in {1000 * opened['seconds_again']:.0f} ms; the process takes {opened['peak']:.0f} MB. One process "
        f"imports JPEG files of 224 pixels, in records a second: {', '.join(rates)}. {made_by('stores')}"
    )


def secure_sums() -> str:
    """Returns the sentence about the time of a secure sum at the coordinator and at a site, for several numbers of sites."""
    result = figures("secure-scale")
    cells = []
    for sites in ("10", "100", "1000"):
        case = list(result["sites"][sites].values())[-1]
        site = case["site"]
        spent = 1000 * (site["offer"] + site["mask"] + site.get("reveal", 0.0))
        cells.append(f"{case['server']['total']:.2g} s and {spent:.0f} ms ({int(sites):,} sites)")
    return (
        f"A secure sum of {result['numbers']:,} numbers, with three tenths of the sites leaving, takes the "
        "coordinator and a site "
        f"{', '.join(cells)} of one core. {made_by('secure-scale')}"
    )


def _lost(result: dict[str, Any]) -> str:
    return f"{len(result['wrong'])} times" if result["wrong"] else "nothing"


def cluster() -> str:
    """Returns the table of what a cluster costs and gains."""
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


_BATCHES = (65_536, 131_072, 262_144)
_RESNET_18 = 11_242_752  # parameters
_OF_VIT_L = 60.0  # records a second, from ViT-B-32's by the number of multiplications: assumed


def scaling() -> str:
    """Returns the table of how well 64 workers use their GPUs: `dpfed cluster cost` applied to measurements of single GPUs."""
    h100, vit = figures("gpu-throughput-h100"), figures("gpu-vit-h200")["gradients"]["bf16, S = 16"]
    step, coordinator = figures("gpu-step"), figures("gpu-throughput")["coordinator"]
    resnet = step["ResNet-18, CIFAR stem"]["private"] | {
        "parameters": _RESNET_18,
        "views_per_second": 4_096e3 / step["views"]["ms_of_4096"],
        "decoded_per_second": step["decoding"]["all"],
    }
    models = {
        "ResNet-18, 32 px": resnet,
        "ViT-B-32, LoRA, 224 px": vit,
        "ViT-L-14-336 in full": vit | {"parameters": 427_900_000, "records_per_second": _OF_VIT_L},
    }
    lines = ["| efficiency of 64 workers | " + " | ".join(f"B = {batch:,}" for batch in _BATCHES) + " |"]
    lines.append("|---" * (1 + len(_BATCHES)) + "|")
    measured = {
        "latency": 1e-6 * h100["transport"]["latency_microseconds"],
        "bandwidth": 25e9,
        "noise": coordinator["noise_seconds_per_million"],
        "bookkeeping": coordinator["bookkeeping_seconds_per_million"],
        "each_step": coordinator.get("seconds_per_step", 0.0),  # the result file may be older than these two
        "commit": coordinator.get("commit_seconds_per_million", 0.0),
    }
    quick = {**measured, "noise": 0.0, "bookkeeping": 0.0, "commit": 0.0, "each_step": 3e-3}
    rows = [(name, model, measured) for name, model in models.items()]
    rows += [
        ("ResNet-18, if the coordinator took 3 ms", resnet, quick),
        ("the same, with messages of 10 µs and 50 GB/s", resnet, {**quick, "latency": 1e-5, "bandwidth": 50e9}),
    ]
    for name, model, links in rows:
        machines = Machines(
            throughput=model["records_per_second"],
            price=0.0,
            keys=h100["worker"]["gaps_seconds_per_million_keys"],
            drawn=h100["worker"]["seconds_per_million_drawn"],
            decoding=1 / model["decoded_per_second"],
            views=1 / model["views_per_second"],
            **links,
        )
        plans = (PrivacyPlan.of(50_000_000, batch, 16, 1.0, 1200, 1.0, 1e-9) for batch in _BATCHES)
        shares = (estimate(plan, machines, model["parameters"], 64).efficiency for plan in plans)
        lines.append(f"| {name} | " + " | ".join(f"{share:.0%}" for share in shares) + " |")
    mean = _BATCHES[0] / 64
    more = largest_share(_BATCHES[0] // 16, 16.0, 64) / mean - 1
    lines += [
        "",
        f"Groups are dealt by size: at B = {_BATCHES[0]:,} the busiest worker has {more:.1%} more records than the mean.",
    ]
    return "\n".join(lines)


def memory() -> str:
    """Returns the sentences about the highest memory peak of whole runs under a limit."""
    result = figures("memory")
    if any("peaks_mb" not in run for run in result["runs"]):
        raise SystemExit("a run did not end within its limit: benchmarks/results/memory.json")
    peaks = []
    for run in result["runs"]:
        phase, peak = max(run["peaks_mb"].items(), key=lambda item: item[1])
        peaks.append(f"{run['model']}: {peak:,} MB ({phase.partition(',')[0]})")
    return (
        f"Whole runs on a CPU, with groups of 4, in a control group of {result['limit_mb']:,} MB. The highest peak of any "
        f"phase: {'; '.join(peaks)}. Evaluation takes as many images at a time as the limit allows."
    )
