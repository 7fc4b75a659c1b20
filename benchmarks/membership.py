"""Membership inference on a model that overfits, trained without privacy and with it (compare DP-GCL, Table 12).

    python -m benchmarks.membership          prints, and writes benchmarks/results/membership.json

1,000 generated captioned shapes, seen 200 times each, so that the model learns them by heart; the same configuration with group
clipping and noise. Both are attacked by `dpfed audit membership`, with 2,000 held-out records as non-members.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.record import write_result
from dpfed.audit.membership import audit_membership
from dpfed.config import parse_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.privacy.promise import round_down
from dpfed.runs.pretraining import pretrain

MEMBERS, NON_MEMBERS, STEPS, EPSILON = 1000, 2000, 800, 8.0
METHODS = {"none": {}, "group": {"epsilon": EPSILON}}


def configuration(store: Path, method: str, promise: dict[str, float]) -> dict[str, Any]:
    """The run of a method; nothing else differs."""
    return {
        "name": f"membership-{method}",
        "data": {"source": "store", "path": str(store), "size": 16},
        "views": {"crop_scale": [0.7, 1.0], "jitter": 0.5},
        "model": {"kind": "image-text", "image": "cnn", "width": 16},
        "objective": {"temperature": 0.1},
        "bounding": {"method": method, "group_size": 16, "engine": "loop"},
        "privacy": {"batch": 256, "steps": STEPS, **promise},
        "optimizer": {"name": "adam", "learning_rate": 2e-3},
        "training": {"device": "cpu"},
        "evaluation": {"tasks": ["retrieval"]},
    }


def main() -> None:
    """Trains, attacks, prints and writes ``benchmarks/results/membership.json``."""
    figures, started = {}, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "shapes"
        write_shapes(store, train=MEMBERS, validation=0, test=NON_MEMBERS)
        for method, promise in METHODS.items():
            run = pretrain(parse_config(configuration(store, method, promise)), Path(folder) / method)
            _, audit = audit_membership(run.path)
            figures[method] = dataclasses.asdict(audit)
            for outcome in audit.outcomes:
                rate, area = outcome.points[0].tpr, outcome.auc
                print(
                    f"{method:>6} {outcome.weights:>10} {outcome.title:<22} TPR at 1% FPR {rate.value:6.1%} "
                    f"[{rate.low:.1%}, {rate.high:.1%}]  AUC {area.value:.3f} [{area.low:.3f}, {area.high:.3f}]  "
                    f"epsilon shown {round_down(outcome.epsilon_shown)}"
                )
    minutes = round((time.perf_counter() - started) / 60, 1)
    # Keys, noise and the choice of records are fresh in every run, so there is no seed to give.
    print(write_result("membership", {**figures, "minutes_on_this_machine": minutes}, seeds=[]))


if __name__ == "__main__":
    main()
