"""Measures how much time kept features save: three runs of private moments (epsilon 1, 3, 8), with and without them.

    python -m benchmarks.kept_features PLACE WORK CIFAR10 [RECORDS]       PLACE: see `benchmarks.moments`; WORK: a new folder

The captions are class names. Both series alternate in one process on the same records. One run before them makes the public
basis, which both series then use. The benchmark writes ``benchmarks/results/kept-features.json``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.frozen_towers import towers, tree
from benchmarks.picture_sets import cifar_store
from benchmarks.record import write_result
from dpfed.config import parse_config
from dpfed.features.kept import forget
from dpfed.runs.pretraining import pretrain

EPSILONS = (1.0, 3.0, 8.0)
SIZE = 64


def main(place: str, work: str, cifar10: str, records: str = "3000") -> None:
    """Times the runs, and writes the result.

    Args:
        place: Folder with the packages of the towers.
        work: New folder for stores and runs.
        cifar10: Folder with train.parquet and test.parquet.
        records: Number of training records.
    """
    folder = Path(work).absolute()
    part = folder / "part"
    part.mkdir(parents=True)
    for split, rows in (("train", int(records)), ("test", 500)):
        pq.write_table(pq.read_table(Path(cifar10) / f"{split}.parquet").slice(0, rows), part / f"{split}.parquet")
    store, files = cifar_store(part, folder / "cifar10"), towers(Path(place))

    def seconds(name: str, epsilon: float, keep: bool) -> float:
        sections = tree(store.path, SIZE, files)
        sections["data"]["keep_features"] = keep
        sections["privacy"] |= {"epsilon": epsilon}
        sections["evaluation"] = {"split": "test"}
        start = time.perf_counter()
        pretrain(parse_config(sections), folder / "runs" / name)
        return time.perf_counter() - start

    seconds("before", 8.0, keep=False)
    forget(store.path)
    series: dict[str, list[float]] = {"kept": [], "not kept": []}
    for epsilon in EPSILONS:
        for name, times in series.items():
            times.append(round(seconds(f"{name}-{epsilon:g}", epsilon, name == "kept"), 1))
            print(name, epsilon, times[-1], flush=True)
    saved = 1 - sum(series["kept"]) / sum(series["not kept"])
    write_result("kept-features", {"records": int(records), "seconds": series, "saved": round(saved, 3)}, [0])


if __name__ == "__main__":
    main(*sys.argv[1:])
