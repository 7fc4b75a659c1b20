"""Measures the peak memory of every phase of a run under a limit of 4 GB: building, trial pass, evaluation, steps, reports.

    python -m benchmarks.memory_limit [NAME ...]      needs Linux; as root, the limit is a control group's

Each run is a process of its own in a control group of 4 GB, which kills the process if it needs more. Where no control group
can be made, the process's address space is limited instead. The benchmark replaces the named rows of
``benchmarks/results/memory.json``, or all rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import timm
from safetensors.torch import save_file

import dpfed
from benchmarks.memory import anonymous_mb
from benchmarks.record import RESULTS, figures, write_result
from dpfed.data.store.record import RecordInput
from dpfed.progress import Progress

NAME = "memory"
LIMIT = 4_000_000_000  # bytes
GROUPS = Path("/sys/fs/cgroup/memory")
RECORDS, HELD_OUT = 96, 48
WORDS = "a photo of some red green blue small large round square thing near another one".split()
MODELS: dict[str, dict[str, Any]] = {
    "ViT-S, 224 px": {"model": {"image": "timm/vit_small_patch16_224"}, "size": 224},
    "EfficientNet-Lite0, 128 px": {"model": {"image": "timm/tf_efficientnet_lite0"}, "size": 128, "weights": True},
    "ViT-B-32 with text, LoRA, 224 px": {
        "model": {"kind": "open_clip", "architecture": "ViT-B-32", "tokenizer": "words"},
        "size": 224,
    },
}


class Phases(Progress):
    """A `Progress` that keeps the peak of anonymous memory between two notes or stages."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}
        self._phase, self._done = "imports", threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """See `Progress`."""
        self._phase = "steps and evaluations" if name == "private steps" else name
        return lambda done: None

    def note(self, text: str) -> None:
        """See `Progress`."""
        self._phase = "evaluation before training" if text.startswith("trains ") else text.partition(":")[0]

    def end(self) -> dict[str, int]:
        """Ends the measurement, and returns the peak of each phase, MB."""
        self._done.set()
        return {name: round(peak) for name, peak in self.peaks.items()}

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self.peaks[self._phase] = max(self.peaks.get(self._phase, 0.0), anonymous_mb())


def store_of(folder: Path, size: int) -> Path:
    """Writes a store of noise pictures with captions.

    Args:
        folder: Folder of the new store.
        size: Side of the images, pixels.
    """
    generator = np.random.default_rng(0)
    with dpfed.StoreWriter(folder, name="noise", kind="image-text", size=size, public=True) as writer:
        for number in range(RECORDS + HELD_OUT):
            pixels = generator.integers(0, 255, (size, size, 3)).astype(np.uint8)
            caption = " ".join(generator.choice(WORDS, 8))
            split = "train" if number < RECORDS else "test"
            writer.add(RecordInput(str(number), pixels, (caption,), {}, split))
    return folder


def measure(name: str) -> dict[str, Any]:
    """Trains one run in this process, and returns the memory peaks of its phases.

    Args:
        name: Name of the model in `MODELS`.
    """
    case = MODELS[name]
    phases, model = Phases(), dict(case["model"])
    with tempfile.TemporaryDirectory() as folder:
        if case.get("weights"):  # BatchNorm wants statistics: those of random weights take as much memory
            model["weights"] = str(Path(folder) / "weights.safetensors")
            net = timm.create_model(model["image"].removeprefix("timm/"), num_classes=0)
            save_file(net.state_dict(), model["weights"])
        config = dpfed.parse_config(
            {
                "data": {"source": "store", "path": str(store_of(Path(folder) / "store", case["size"])), "size": case["size"]},
                "model": model,
                "privacy": {"noise_multiplier": 1.0, "batch": 16, "steps": 2, "accountant": "rdp"},
                "bounding": {"group_size": 4, "microbatch": 16},
                "evaluation": {"split": "test", "every": 1},
                "training": {"device": "cpu"},
            }
        )
        dpfed.pretrain(config, Path(folder) / "run", progress=phases)
    return {"peaks_mb": phases.end()}


@contextmanager
def limited() -> Iterator[tuple[str, Callable[[], None]]]:
    """Makes the memory limit of a child process: the kind of limit, and a function that the child calls first."""
    group = GROUPS / f"dpfed-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
    except OSError:
        import resource

        yield "addresses", lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
        return
    try:
        yield "control group", lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    finally:
        group.rmdir()


def main(*names: str) -> None:
    """Measures the named models, or all, each in a process of its own, and writes the result after each."""
    rows = figures(NAME)["runs"] if (RESULTS / f"{NAME}.json").exists() else []
    for name in names or MODELS:
        with limited() as (kind, enter):
            command = [sys.executable, "-m", "benchmarks.memory_limit", "--child", name]
            done = subprocess.run(command, preexec_fn=enter, capture_output=True, text=True)  # noqa: PLW1509
        print(name, done.returncode, done.stdout[-2000:], done.stderr[-2000:], flush=True)
        rows = [row for row in rows if row["model"] != name]
        result = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"ended": done.returncode}
        rows.append({"model": name, "limit": kind, **result})
        write_result(NAME, {"limit_mb": LIMIT // 10**6, "records": RECORDS, "held_out": HELD_OUT, "runs": rows}, seeds=[])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(*sys.argv[1:])
