"""What a store of many records costs: to open, to start a worker with, and to import, against reading its bytes.

python -m benchmarks.stores [PLACE]     # default: a temporary folder; needs 10 GB there, writes benchmarks/results/stores.json

Opening and starting are timed in new processes. `read_cold` reads files that the system was asked to forget.
"""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.own_memory import seconds
from benchmarks.record import write_result
from benchmarks.synthetic_store import write_synthetic

SIZES = (1_000_000, 10_000_000, 100_000_000)
SHARDED, SHARDS, WORKERS = 10_000_000, 64, 64
BATCH = 65_536
ARCHIVES, SAMPLES = 16, 2_000  # of a data set to import
SIDE = 224

_OPEN = """
from benchmarks.own_memory import megabytes, seconds
before = megabytes()
from dpfed.data.store.records import RecordStore
imported = megabytes()
first = seconds(lambda: RecordStore.open({path!r}, {owner}, {owners}))
store, again = RecordStore.open({path!r}, {owner}, {owners}), seconds(lambda: RecordStore.open({path!r}, {owner}, {owners}))
print(dict(open=len(store), seconds=first, seconds_again=again, megabytes=megabytes(), megabytes_imported=imported))
"""

# A worker's records as they were found before: all rows of the split, and a copy of their keys.
_COPIED = "indices = store.split('train'); keys, own = store.keys[indices], None"
_MAPPED = "keys, own = store.keys, OwnRows(store, store.keys)"
_START = """
from benchmarks.own_memory import megabytes, peak, seconds
from dpfed.data.own_rows import OwnRows
from dpfed.data.store.records import RecordStore
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.renewals import block_length
from dpfed.privacy.samplers import PoissonSampler
store = RecordStore.open({path!r})
before = megabytes(), peak()
def start():
    global keys, own
    {how}
found = dict(seconds=seconds(start), anonymous_megabytes=megabytes() - before[0], peak_megabytes=peak() - before[1])
rate = {batch} / len(store)
draws = PoissonSampler(rate, block_length(rate, 100_000)).participants(Randomness.from_seed(0), keys, own)
print(found | dict(first_draw_seconds=seconds(lambda: draws(0)), drawn=len(draws(1)), block=block_length(rate, 100_000)))
"""


def measured(program: str) -> dict[str, Any]:
    """What a program in a new process prints, with the peak of its memory."""
    program += "\nfrom benchmarks.own_memory import peak\nprint(peak())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    figures, most = done.stdout.splitlines()
    return eval(figures) | {"peak": float(most)}  # a dictionary of numbers that this file printed


def opening(place: Path) -> dict[str, Any]:
    """Opening stores of several sizes, and starting a worker with them."""
    found = {}
    for size in SIZES:
        path = place / f"store-{size}"
        disk = write_synthetic(path, size)
        opened = measured(_OPEN.format(path=str(path), owner=0, owners=1))
        start = {how: measured(_START.format(path=str(path), how=code, batch=BATCH)) for how, code in _WAYS.items()}
        found[size] = {"disk_bytes": disk, "opened": opened, "start": start}
        print(size, found[size], flush=True)
        if size != SHARDED:
            shutil.rmtree(path)
    return found


_WAYS = {"copied": _COPIED, "mapped": _MAPPED}


def sharded(place: Path) -> dict[str, Any]:
    """Opening one of many workers' shards, and all of them."""
    from dpfed.data.store.sharding import shard_store

    source, path = place / f"store-{SHARDED}", place / "sharded"
    took = seconds(lambda: shard_store(source, path, SHARDS))
    found = {owners: measured(_OPEN.format(path=str(path), owner=0, owners=owners)) for owners in (WORKERS, 1)}
    shutil.rmtree(source)
    shutil.rmtree(path)
    return {"records": SHARDED, "shards": SHARDS, "sharding_seconds": took, "workers": found}


def write_archives(folder: Path) -> None:
    """WebDataset archives of photographs' size and detail."""
    folder.mkdir()
    pictures = [_jpeg(number) for number in range(200)]
    for shard in range(ARCHIVES):
        with tarfile.open(folder / f"{shard:05}.tar", "w") as archive:
            for number in range(SAMPLES):
                caption = f"picture {number} of archive {shard}".encode()
                for kind, content in (("jpg", pictures[(number * 7 + shard) % len(pictures)]), ("txt", caption)):
                    entry = tarfile.TarInfo(f"{number:06}.{kind}")
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))


def write_parquet(folder: Path) -> None:
    """The same in Parquet, with names."""
    folder.mkdir()
    pictures = [_jpeg(number) for number in range(200)]
    for shard in range(ARCHIVES):
        rows = range(SAMPLES)
        images = [pictures[(row * 7 + shard) % len(pictures)] for row in rows]
        table = {"id": [f"{shard}-{row}" for row in rows], "image": images, "text": [f"picture {row}" for row in rows]}
        pq.write_table(pa.table(table), folder / f"{shard:05}.parquet", row_group_size=500, use_dictionary=False)


def _jpeg(number: int) -> bytes:
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (28, 28, 3), dtype=np.uint8)).resize(
        (SIDE, SIDE), Image.Resampling.BICUBIC
    )
    noisy = np.clip(np.asarray(coarse, np.int16) + random.normal(0, 12, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def read(folder: Path, forget: bool) -> float:
    """Seconds to read all files of a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    for file in files if forget else ():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def work() -> None:
        for file in files:
            with file.open("rb", buffering=0) as opened:
                while opened.read(1 << 22):
                    pass

    return seconds(work)


def importing(place: Path) -> dict[str, Any]:
    """Imports of archives and Parquet files in several ways, over reading their bytes."""
    from dpfed.data.importers import import_records

    found: dict[str, Any] = {}
    for name, write in (("webdataset", write_archives), ("parquet", write_parquet)):
        source = place / name
        write(source)
        size = sum(file.stat().st_size for file in source.iterdir())
        reading = {"cold": read(source, True), "warm": read(source, False)}
        rows = {}
        ways = {"decoded": {}, "not decoded": {"decode": False}, "linked, not decoded": {"decode": False, "link": True}}
        for way, options in list(ways.items())[: 3 if name == "webdataset" else 2]:
            for workers in (1, 2):
                dest = place / "imported"
                took = seconds(functools.partial(import_records, source, dest, workers=workers, **options))
                written = sum(file.stat().st_size for file in dest.iterdir())
                rows[f"{way}, {workers}"] = {"seconds": took, "written": written, "over_reading_cold": took / reading["cold"]}
                print(name, way, workers, rows[f"{way}, {workers}"], flush=True)
                shutil.rmtree(dest)
        records = ARCHIVES * SAMPLES
        found[name] = {"records": records, "bytes": size, "reading": reading, "imports": rows, "cores": os.cpu_count()}
        shutil.rmtree(source)
    return found


def main() -> None:
    """Measures all of it."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        place = Path(folder)
        figures = {"importing": importing(place), "opening": opening(place), "sharded": sharded(place)}
    print(json.dumps(figures, indent=1))
    print(write_result("stores", figures, seeds=[0]))


if __name__ == "__main__":
    main()
