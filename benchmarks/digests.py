"""Compares what seeded runs release, bit for bit, before and after a refactoring, which must not change it.

    python -m benchmarks.digests before.json      # before the change
    python -m benchmarks.digests before.json      # after the change: names the runs that release something else, exit code 1

The benchmark uses only configurations and the command line, so that it still works after a change of all code inside. Digests
depend on the processor and the versions of libraries, so a file is of use only on the machine that wrote it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PAIRS = {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 8}
IMAGES = {"kind": "image", "width": 8, "embedding": 8, "head_hidden": 16}
BASE: dict[str, Any] = {
    "data": {"source": "shapes", "records": 300, "size": 16},
    "views": {"crop_scale": [0.5, 1.0], "jitter": 0.5},
    "model": PAIRS,
    "bounding": {"group_size": 4, "engine": "loop", "microbatch": 32},
    "privacy": {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 40, "steps": 4, "seed": 3},
    "optimizer": {"learning_rate": 3e-3},
    "training": {"checkpoint_every": 2, "device": "cpu"},
    "evaluation": {"tasks": ["retrieval"], "records": 40},
}
OWN = {"group_size": None, "engine": None}  # of methods that have their own
IMAGE_RUN = {"model": IMAGES, "evaluation": {"tasks": ["knn"], "records": 40, "bank": 60}}
NO_NOISE = {"noise_multiplier": None, "accountant": None}
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "group": ({}, ()),
    "group, layerwise": ({"bounding": {"engine": "layerwise"}}, ()),
    "group, capped": ({"bounding": {"max_group_size": 3}}, ()),
    "average": ({"optimizer": {"ema": 0.9}}, ()),
    "momentum, cosine": ({"optimizer": {"name": "sgd", "momentum": 0.9, "schedule": "cosine", "learning_rate": 0.01}}, ()),
    "learnt temperature": ({"objective": {"learn_temperature": True}}, ()),
    "siglip": ({"objective": {"name": "siglip"}}, ()),
    "epsilon": ({"privacy": {"noise_multiplier": None, "epsilon": 8.0, "accountant": "pld"}}, ()),
    "batch": ({"bounding": {"method": "batch", **OWN}}, ()),
    "sample": ({"bounding": {"method": "sample", **OWN}}, ()),
    "logit": ({"bounding": {"method": "logit", **OWN}}, ()),
    "released": ({"bounding": {"method": "released", **OWN}}, ()),
    "dpcl": ({"bounding": {"method": "dpcl", **OWN}, "privacy": {"accountant": None}}, ()),
    "public": (
        {
            "bounding": {"method": "public", "group_size": None},
            "public": {"source": "shapes", "generated": 64, "half": "first"},
        },
        (),
    ),
    "none": ({"bounding": {"method": "none"}, "privacy": NO_NOISE}, ()),
    "images": (IMAGE_RUN, ()),
    "batch normalisation": ({**IMAGE_RUN, "model": {**IMAGES, "normalisation": "batch"}}, ()),
    "barlow twins": ({**IMAGE_RUN, "objective": {"name": "barlow_twins"}}, ()),
    "persons": ({"data": {"source": "table", "records": None}, "privacy": {"unit": "user", "per_unit": 2, "batch": 20}}, ()),
    "adapters": (
        {
            "model": {"kind": "open_clip", "architecture": "towers/small.json", **dict.fromkeys([*PAIRS][1:])},
            "adaptation": {"image": "lora", "text": "lora", "rank": 2},
            "data": {"size": None},
        },
        (),
    ),
    "simulated, central": ({"evaluation": {"split": "none", "tasks": None, "records": None}}, ("--federated", "2")),
    "simulated, distributed": (
        {"evaluation": {"split": "none", "tasks": None, "records": None}},
        ("--federated", "3", "--trust", "distributed"),
    ),
    "simulated, secure": (
        {"evaluation": {"split": "none", "tasks": None, "records": None}},
        ("--federated", "3", "--trust", "secure"),
    ),
}


def digests(name: str, folder: Path) -> dict[str, str]:
    """Returns the digests of one seeded run: of its releases, its weights, and its privacy figures.

    Args:
        name: Name of the case in `CASES`.
        folder: Folder for stores and the run.
    """
    _, options = CASES[name]
    source, run = folder / "config.toml", folder / name.replace(", ", "-").replace(" ", "-")
    source.write_text(_toml(tree_of(name, folder)), encoding="utf-8")
    command = [sys.executable, "-m", "dpfed", "pretrain", str(source), "--run", str(run), "--json", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    return {"ledger": _hash(*_released(run)), "model": _hash(*_weights(run)), "privacy": _hash(*_privacy(run))}


def _released(run: Path) -> list[bytes]:
    lines = map(json.loads, (run / "ledger.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["digest"].encode() for line in lines if line.get("charged")]


def _weights(run: Path) -> list[bytes]:
    from safetensors.numpy import load_file

    files = sorted((run / "model").rglob("*.safetensors"))
    return [name.encode() + value.tobytes() for file in files for name, value in sorted(load_file(file).items())]


def _privacy(run: Path) -> list[bytes]:
    privacy = json.loads((run / "results.json").read_text(encoding="utf-8"))["privacy"]
    return [repr(privacy.get(key)).encode() for key in ("epsilon", "delta", "noise_multiplier", "noise_std", "steps_charged")]


def _hash(*parts: bytes) -> str:
    if not parts:
        raise SystemExit("a run left nothing to compare")
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def tree_of(name: str, folder: Path) -> dict[str, Any]:
    """Returns the configuration of one of `CASES`, as nested dictionaries.

    Args:
        name: Name of the case in `CASES`.
        folder: Folder for stores and other files that the run reads.
    """
    changes, _ = CASES[name]
    tree = {"name": "digests"} | {section: {**values, **changes.get(section, {})} for section, values in BASE.items()}
    tree |= {section: values for section, values in changes.items() if section not in BASE}
    if "kind" in changes.get("model", {}) and changes["model"]["kind"] == "image":
        tree["model"] = changes["model"]
    tree["data"]["stores"] = str(folder / "stores")
    if tree["data"]["source"] == "table":
        tree["data"]["path"] = str(_persons(folder))
    return {section: _given(values) for section, values in tree.items()}


def _given(values: Any) -> Any:
    return {key: value for key, value in values.items() if value is not None} if isinstance(values, dict) else values


def _persons(folder: Path) -> Path:
    """A table of images with captions, some of which show the same person."""
    from PIL import Image

    table = folder / "persons.csv"
    if not table.exists():
        with open(table, "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["filepath", "title", "person_id", "split"])
            for number in range(160):
                colour = (number * 37 % 256, number * 91 % 256, number * 53 % 256)
                Image.new("RGB", (20, 20), colour).save(folder / f"{number}.png")
                split = "train" if number < 120 else "test"
                rows.writerow([f"{number}.png", f"colour {number}", f"p{number // 3}", split])
    return table


def _toml(tree: dict[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(tree)


def main() -> None:
    """Writes the digests to the file, or compares them with the file's."""
    if len(sys.argv) < 2:
        raise SystemExit("give the file that holds the digests, or will: python -m benchmarks.digests FILE [CASE ...]")
    path, wanted = Path(sys.argv[1]), sys.argv[2:] or list(CASES)
    before: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    changed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            now = digests(name, Path(folder))
            known = before.setdefault(name, now)
            parts = [part for part in now if now[part] != known[part]]
            changed += [name] * bool(parts)
            news = "changed: " + ", ".join(parts) if parts else "noted" if known is now else "the same"
            print(f"{name}: {news}", flush=True)
    path.write_text(json.dumps(before, indent=2) + "\n", encoding="utf-8")
    if changed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
