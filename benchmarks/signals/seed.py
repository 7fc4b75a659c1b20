"""What commands find in their folder: stores, pictures, runs, sites and a provisioned federation, made by the commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import tomli_w
from PIL import Image

from dpfed.data.generated.shapes import write_shapes

DPFED = Path(sys.executable).with_name("dpfed")
SITES = ("north", "south", "west")
_STEPS = 60
_PICTURES = 1_500
_FINGERPRINT = re.compile(r"(?:[0-9a-f]{4} ){7}[0-9a-f]{4}")


def environment(folder: Path) -> dict[str, str]:
    """Of a command in a folder of its own: budgets, home and temporary files lie there."""
    settings = {
        "DPFED_BUDGETS": str(folder / "budgets"),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "MPLCONFIGDIR": str(folder.parent / "matplotlib"),  # fonts are listed once
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "OMP_NUM_THREADS": "1",
        "RAY_TMPDIR": str(folder.parent / "ray"),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "RAY_", "FLWR_", "DPFED_"))}
    return kept | settings


def make_seed(folder: Path) -> dict[str, str]:
    """Makes it, if it is not there.

    Returns:
        Words that stand for what this seed holds: the coordinator's and a site's fingerprints.
    """
    if (words := folder / "words.json").exists():
        return json.loads(words.read_text())
    for name in ("home", "tmp", "stores", "runs", "sites", "pictures"):
        (folder / name).mkdir(parents=True)
    for seed, (name, train) in enumerate({"records": 600, "public": 60, "budgeted": 600, "chest": 100}.items()):
        write_shapes(folder / "stores" / name, train=train, validation=0, test=200, seed=seed)
    for seed, name in enumerate(SITES):
        write_shapes(folder / "stores" / name, train=200, validation=0, test=50, seed=10 + seed)
    header = folder / "stores" / "public" / "store.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "public": True}))
    _write_pictures(folder)
    tiny = _tiny(folder / "stores" / "records")
    (folder / "tiny.toml").write_text(tomli_w.dumps(tiny))
    chest = tiny | {"name": "chest", "data": tiny["data"] | {"path": str(folder / "stores" / "chest")}}
    chest["privacy"] = tiny["privacy"] | {"steps": 20}
    (folder / "fed.toml").write_text(tomli_w.dumps(chest))
    runs = [{"name": f"width-{width}", "set": {"model.width": width, "privacy.steps": 10}} for width in (8, 16)]
    (folder / "sweep.toml").write_text(tomli_w.dumps({"name": "widths", "about": "Widths", "run": runs}))
    (folder / "secret").write_bytes(os.urandom(32))
    _called(folder, "budget", "set", "stores/budgeted", "--epsilon", "40", "--delta", "1e-4")
    _called(folder, "pretrain", "tiny.toml", "--run", "runs/done", "--set", "privacy.steps=20")
    _begin(folder, "begun", "budgeted")
    _begin(folder, "open", "records")
    known = _make_federation(folder)
    words.write_text(json.dumps(known))
    return known


def _tiny(store: Path) -> dict:
    return {
        "name": "tiny",
        "data": {"source": "store", "path": str(store), "size": 16},
        "views": {"crop_scale": [0.5, 1.0], "jitter": 0.5},
        "model": {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16},
        "bounding": {"group_size": 4, "engine": "loop", "microbatch": 32},
        "privacy": {"epsilon": 8.0, "batch": 60, "steps": _STEPS},
        "optimizer": {"learning_rate": 3e-3},
        "training": {"checkpoint_every": 2, "device": "cpu"},
        "evaluation": {"tasks": ["retrieval"], "every": 20, "records": 100},
    }


def _write_pictures(folder: Path) -> None:
    """Files of noise, for `data import` and `embed`."""
    draw = np.random.default_rng(0)
    for number in range(_PICTURES):
        pixels = draw.integers(0, 256, (96, 96, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{number:05}.png")


def _called(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [DPFED, *words], cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"the seed could not be made: dpfed {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _begin(folder: Path, name: str, store: str) -> None:
    """A run that was interrupted. Under a budget, a copy of it cannot be resumed."""
    words = [
        "pretrain",
        "tiny.toml",
        "--run",
        f"runs/{name}",
        "--set",
        "privacy.steps=100",
        "--set",
        f"data.path=stores/{store}",
    ]
    process = subprocess.Popen(
        [DPFED, *words], cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    ledger = folder / "runs" / name / "ledger.jsonl"
    while process.poll() is None and not (ledger.exists() and len(ledger.read_text().splitlines()) > 12):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    if process.wait() != 143:
        raise SystemExit(f"the seed could not be made: an interrupted run ended with {process.returncode}")


def _make_federation(folder: Path) -> dict[str, str]:
    project = {"name": "chest", "config": "fed.toml", "host": "127.0.0.1", "port": 29443, "link_port": 29543}
    (folder / "project.toml").write_text(tomli_w.dumps({**project, "sites": list(SITES), "trust": "distributed"}))
    said = _called(folder, "federation", "provision", "project.toml")
    coordinator, cards = _FINGERPRINT.findall(said)[-1], {}
    for name in SITES:
        kit, store = f"chest/kits/chest-{name}.kit.json", f"stores/{name}"
        words = ["--coordinator", coordinator, "--store", store, "--budget", "100", "--into", "sites"]
        cards[name] = _FINGERPRINT.findall(_called(folder, "site", "setup", kit, *words))[-1]
        shutil.copy(folder / "sites" / f"chest-{name}" / "reply.json", folder / "chest" / "replies" / f"{name}.json")
    shutil.copytree(folder / "chest", folder / "unset" / "chest", symlinks=True)
    _called(folder, "federation", "provision", "project.toml")
    _called(folder, "site", "confirm", "sites/chest-north", cards["south"], cards["west"])
    _called(folder, "site", "join", "sites/chest-north", "chest/kits/chest-north.kit.json", "--yes")
    return {"{coordinator}": coordinator.replace(" ", ""), "{south}": cards["south"].replace(" ", "")}
