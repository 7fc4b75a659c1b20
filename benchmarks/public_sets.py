"""Which public records help, and how many of them in a group: public contrast on five classes of CIFAR-10 at epsilon 1.

python -m benchmarks.public_sets DATA [PHOTOGRAPHS [PROCESSES]]

DATA: CIFAR-10 as Parquet. PHOTOGRAPHS: a folder of images of any kind, such as one of each class of ImageNet; left out where it
is not given. The private records are 20,000 images of the last five classes. Every public set has 5,000 records: generated
ones, crops of photographs, images of the first five classes, and of the private ones. Each is measured as a public set from
random weights, as the only data (without noise, with as many passes of the model), and as both. One run of each, from its own
random weights, so figures vary by two points. The runs are in runs/public-sets; what the result file holds is kept.
"""

from __future__ import annotations

import io
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.kept import KeptRuns
from benchmarks.trained import measured, trained
from dpfed.data.importers.importing import import_records

FOLDER = Path("runs/public-sets")
METRICS = ("knn3_accuracy", "knn200_accuracy", "linear_probe_accuracy")
STEPS, GROUPS, RATE, WIDTH = 100, 512, 2e-3, 16
PASSES = 4 * GROUPS  # of the model over a record, in a step, with three public records in a group
RECORDS = 5_000  # in each public set
IN_GROUP = (1, 3, 7, 15)
GENERATED = ("procedural", "shapes")
_COMMON: dict[str, Any] = {
    "model.width": WIDTH,
    "evaluation.every": 0,
    "optimizer.learning_rate": RATE,
    "optimizer.schedule": "cosine",
}


def main(data: str, photographs: str | None = None, processes: str = "1") -> None:
    """Trains what is missing, and writes ``benchmarks/results/public-sets.json``."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    _divide(Path(data))
    if photographs:
        crop(Path(photographs))
    kinds = [*GENERATED, *(["photographs"] if photographs else []), "other-classes", "same-classes"]
    kept = KeptRuns("public-sets")
    with ThreadPoolExecutor(int(processes)) as pool:
        starts = dict(zip(kinds, pool.map(alone, kinds), strict=True))
        wanted = [("random", kind, 3) for kind in kinds] + [(kind, kind, 3) for kind in kinds]
        wanted += [("random", "procedural", records) for records in IN_GROUP if records != 3]
        found = list(pool.map(lambda one: _private(kept, starts, *one), wanted))
    kept.finish(found, steps=STEPS, groups=GROUPS, rate=RATE)


def alone(kind: str) -> Path:
    """Trains on a public set, without privacy, and returns the run."""
    files = {"data.source": "parquet", "data.path": str(FOLDER / kind), "data.size": 32, "data.public": "true"}
    own = {"data.source": kind, "data.records": RECORDS} if kind in GENERATED else files | {"data.records": ""}
    trained(FOLDER / f"alone-{kind}", "start", _COMMON | {"privacy.batch": PASSES, "privacy.steps": STEPS} | own)
    return FOLDER / f"alone-{kind}"


def private_settings(in_group: int, groups: int, steps: int) -> dict[str, Any]:
    """What changes in the configuration ``cifar10-cpu``; records and the public set are missing."""
    return _COMMON | {
        "bounding.method": "public",
        "bounding.group_size": "",
        "public.records": in_group,
        "public.centring": 0,
        "privacy.epsilon": 1,
        "privacy.batch": groups,
        "privacy.steps": steps,
    }


def _private(kept: KeptRuns, starts: dict[str, Path], start: str, kind: str, in_group: int) -> dict[str, Any]:
    """A private run that begins with random weights, or with those of a public set."""
    generated = {"public.source": kind, "public.generated": RECORDS}
    source = generated if kind in GENERATED else {"public.path": str(store(kind))}
    changes = private_settings(in_group, GROUPS, STEPS) | {"data.path": str(FOLDER / "private"), "data.validation": ""} | source
    if start != "random":
        changes["model.start"] = str(starts[start])
    key = {"start": start, "public": kind, "in_group": in_group}
    place = FOLDER / f"{start}-{kind}-{in_group}"
    return kept.find(key, changes, lambda: measured(trained(place, "cifar10-cpu", changes), METRICS))


def store(kind: str) -> Path:
    """A public set that is not generated, imported."""
    place = FOLDER / f"{kind}-store"
    if not place.exists():
        import_records(FOLDER / kind, place, size=32, public=True)
    return place


def _divide(data: Path) -> None:
    """Private: the last five classes but 5,000 records. Public sets: those, and as many of the first five classes."""
    train, test = (pq.read_table(data / f"{part}.parquet") for part in ("train", "test"))
    label = next(name for name in train.schema.names if "label" in name)
    last = train.filter(pc.greater_equal(train[label], 5))
    parts = {
        "private/train": last.slice(RECORDS),
        "private/test": test.filter(pc.greater_equal(test[label], 5)),
        "same-classes/train": last.slice(0, RECORDS),
        "other-classes/train": train.filter(pc.less(train[label], 5)).slice(0, RECORDS),
    }
    for name, table in parts.items():
        column = table.schema.get_field_index(label)
        numbers = pa.array([number % 5 for number in table[label].to_pylist()])
        _write(table.set_column(column, label, numbers), name)


def crop(photographs: Path) -> None:
    """5,000 square crops, each of at least half of a photograph's shorter side, at 32 x 32 pixels."""
    files = sorted(path for path in photographs.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not files:
        raise SystemExit(f"{photographs}: no .jpg, .jpeg or .png files in it; give the folder of the photographs.")
    draw, images = random.Random(0), []
    for number in range(RECORDS):
        with Image.open(files[number % len(files)]) as opened:
            image = opened.convert("RGB")
        side = int(min(image.size) * draw.uniform(0.5, 1))
        left, top = (draw.randint(0, whole - side) for whole in image.size)
        small = io.BytesIO()
        image.crop((left, top, left + side, top + side)).resize((32, 32), Image.Resampling.BOX).save(small, "png")
        images.append({"bytes": small.getvalue(), "path": None})
    _write(pa.table({"image": images}), "photographs/train")


def _write(table: pa.Table, name: str) -> None:
    path = FOLDER / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


if __name__ == "__main__":
    main(sys.argv[1], *sys.argv[2:])
