"""Compares `dpfed.PrivateCCA` with scikit-learn's exact CCA, on two matrices that share a few directions, and times it.

python -m benchmarks.two_arrays --draws 5 --rows 100000 1000000

Without ``--rows``, the times in the result file stay. The benchmark also measures what a basis of public rows adds to few rows.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cross_decomposition import CCA

import dpfed
from benchmarks.record import figures, write_result
from dpfed.arrays.embedding import recall

TRAINED, HELD_OUT, SHARED, NOISE = 5000, 1000, 6, 0.7
WIDTHS, EPSILONS = ((48, 40), (300, 200), (200, 12)), (1, 3, 8)
FEW, PUBLIC, FEW_WIDTHS = 600, 2000, ((48, 40), (300, 200))  # with a public basis: rows, public rows, columns
LARGE = (512, 384)  # columns, float16


def two_views(rows: int, widths: tuple[int, int], seed: int) -> list[np.ndarray]:
    """Returns X and Y, float32 ``(rows, width)``: linear functions of a few common numbers, each with noise of its own.

    Args:
        rows: Number of rows.
        widths: Numbers of columns of X and of Y.
        seed: Seed of the rows.
    """
    mixing, drawn = np.random.default_rng(99), np.random.default_rng(seed)
    common = drawn.standard_normal((rows, SHARED))
    return [
        (common @ mixing.standard_normal((SHARED, width)) / SHARED**0.5 + NOISE * drawn.standard_normal((rows, width))).astype(
            "f4"
        )
        for width in widths
    ]


def found(widths: tuple[int, int], draws: int) -> dict[str, Any]:
    """Measures R@10 on held-out rows, a fraction, by epsilon; means over draws of rows and noise."""
    kept: dict[str, list[float]] = {}
    for seed in range(draws):
        x, y = two_views(TRAINED + HELD_OUT, widths, seed)
        used, held = (x[:TRAINED], y[:TRAINED]), (x[TRAINED:], y[TRAINED:])
        exact = CCA(SHARED, max_iter=5000).fit(*used).transform(*held)
        kept.setdefault("exact", []).append(recall(*[np.ascontiguousarray(side, np.float32) for side in exact]))
        for epsilon in EPSILONS:
            cca = dpfed.PrivateCCA(epsilon=epsilon).fit(*used)
            kept.setdefault(f"{epsilon}", []).append(cca.with_components(SHARED).score(*held))
            kept.setdefault(f"{epsilon} all", []).append(cca.score(*held))
    return {name: round(statistics.mean(values), 4) for name, values in kept.items()}


def gained(widths: tuple[int, int], draws: int) -> dict[str, Any]:
    """Measures R@10 of heads that are fitted to few rows, in a random basis and in a basis of public rows, for each draw."""
    kept: dict[str, list[float]] = {}
    for seed in range(draws):
        x, y = two_views(FEW + HELD_OUT, widths, seed)
        bases = {"random": None, "public": tuple(two_views(PUBLIC, widths, 1000 + seed))}
        for (name, basis), epsilon in itertools.product(bases.items(), EPSILONS):
            cca = dpfed.PrivateCCA(epsilon=epsilon, basis=basis).fit(x[:FEW], y[:FEW])
            kept.setdefault(f"{epsilon} {name}", []).append(cca.score(x[FEW:], y[FEW:]))
    return {name: [round(value, 4) for value in values] for name, values in kept.items()}


def pace(rows: int) -> dict[str, Any]:
    """Measures the seconds and the memory of a fit to memory-mapped float16 matrices of so many rows."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, width in zip("xy", LARGE, strict=True):
            paths.append(Path(folder) / f"{name}.npy")
            mapped = np.lib.format.open_memmap(paths[-1], "w+", np.float16, (rows, width))
            for first in range(0, rows, 10_000):
                part = mapped[first : first + 10_000]
                part[:] = np.random.default_rng(first).standard_normal(part.shape, np.float32)
            mapped.flush()
            del mapped
        ended, before, peaks = threading.Event(), _own_memory(), [0.0]

        def watch() -> None:
            while not ended.wait(0.05):
                peaks[0] = max(peaks[0], _own_memory() - before)

        watcher = threading.Thread(target=watch)
        watcher.start()
        start = time.perf_counter()
        cca = dpfed.PrivateCCA(epsilon=3).fit(*paths)
        seconds = time.perf_counter() - start
        ended.set()
        watcher.join()
        size = sum(path.stat().st_size for path in paths) / 2**30
        return {
            "rows": rows,
            "columns": LARGE,
            "dimensions": len(cca.heads_["image.centre"]),
            "seconds": round(seconds, 1),
            "files_gib": round(size, 2),
            "added_memory_gib": round(peaks[0], 2),
        }


def _own_memory() -> float:
    """Returns the GiB of this process's memory, without pages of mapped files."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 2**20


def table() -> str:
    """Returns the table of both CCAs, for docs/results.md."""
    given = figures("two_arrays")
    heads = "| columns of X, Y | exact CCA | epsilon 1 | 3 | 8 | all k columns, epsilon 1 | 3 | 8 |"
    lines = [heads, "|---" * heads.count("|", 1) + "|"]
    for row in given["found"]:
        names = ["exact", *map(str, EPSILONS), *(f"{epsilon} all" for epsilon in EPSILONS)]
        cells = " | ".join(f"{100 * row['recall'][name]:.0f}" for name in names)
        lines.append(f"| {row['widths'][0]}, {row['widths'][1]} | {cells} |")
    paces = (
        f"{run['rows']:,} rows of {run['columns'][0]} and {run['columns'][1]} float16 columns take {run['seconds']:.0f} s on "
        f"one busy core, and {run['added_memory_gib']} GiB of memory beside the mapped files."
        for run in given["pace"]
    )
    said = (
        f"R@10 of {HELD_OUT:,} held-out rows, percent. {TRAINED:,} rows were fitted, which share {SHARED} directions. Means of "
        f"{given['draws']} draws of rows and noise. The heads have {SHARED} columns (`n_components`), or all "
        f"k. {' '.join(paces)}"
    )
    return "\n".join([*lines, "", said])


def table_of_basis() -> str:
    """Returns the table of few rows with a public basis, for docs/two-arrays.md."""
    given = figures("two_arrays")
    heads = "| columns of X, Y | random basis, epsilon 1 | 3 | 8 | public basis, epsilon 1 | 3 | 8 |"
    lines = [heads, "|---" * heads.count("|", 1) + "|"]
    for row in given["few"]:
        recalls = [row["recall"][f"{epsilon} {name}"] for name in ("random", "public") for epsilon in EPSILONS]
        cells = " | ".join(f"{100 * statistics.mean(draws):.0f} ± {100 * statistics.stdev(draws):.0f}" for draws in recalls)
        lines.append(f"| {row['widths'][0]}, {row['widths'][1]} | {cells} |")
    said = (
        f"R@10 of {HELD_OUT:,} held-out rows, percent, after a fit to {FEW} rows. The public basis is made of {PUBLIC:,} "
        f"other rows of the same kind. ±: standard deviation over {given['draws']} draws of rows and noise."
    )
    return "\n".join([*lines, "", said])


def main() -> None:
    """Measures both CCAs, bases and times, and writes ``benchmarks/results/two_arrays.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="*", default=[])
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of CCA: rounding in its last iterations
    rows = [{"widths": widths, "recall": found(widths, given.draws)} for widths in WIDTHS]
    few = [{"widths": widths, "recall": gained(widths, given.draws)} for widths in FEW_WIDTHS]
    paces = [pace(count) for count in given.rows] or figures("two_arrays")["pace"]
    found_all = {"draws": given.draws, "found": rows, "few": few, "pace": paces}
    print(write_result("two_arrays", found_all, list(range(given.draws))))


if __name__ == "__main__":
    main()
