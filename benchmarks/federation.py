"""What a round of a real federation costs beyond an empty round of Flower's, the bare transfer, and the sites' computing.

    python -m benchmarks.federation             about ten minutes on two quiet cores; writes benchmarks/results/federation.json
    python -m benchmarks.federation secure      one mode of trust; writes nothing
    python -m benchmarks.federation --quick     to see that it works; writes nothing

Three sites on this machine, a process for every party, over TLS and with node authentication. A ResNet-18 of 11.2 million
parameters goes to each site, 45 MB, and a sum as long comes back. Within one run the rounds take turns with echoes
(`benchmarks.rounds`), so whatever else the machine does hits all alike.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.record import write_result
from benchmarks.rounds import PARTS as SERVER
from benchmarks.timed_site import PARTS as SITE
from dpfed.config import parse_config
from dpfed.data.generated.shapes import shapes_store
from dpfed.data.store.division import EVALUATION, divide_store, site_folder
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.demo.loopback import RUN, free_ports, loopback
from dpfed.federation.protocol.terms import Terms
from dpfed.federation.site.folder import SiteFolder

MODES = ("central", "secure")
SITES, RECORDS, GROUP_SIZE, BATCH = 3, 2_000, 4, 96
COLD = 1  # steps that do not count: connections and caches are new
RUN_LENGTH = 1_200  # rounds whose time is stated
_ROOT = Path(__file__).resolve().parents[1]
_PATIENCE = 300.0  # seconds that a site may take to load


def main(modes: tuple[str, ...], quick: bool) -> None:
    """Measures, prints and, if it is all of it, writes ``benchmarks/results/federation.json``."""
    width, steps = (16, 3) if quick else (64, 12)
    with tempfile.TemporaryDirectory(prefix="dpfed-") as place:
        folder = Path(place)
        store = shapes_store(RECORDS, folder / "records")
        divide_store(store.path, folder / "stores", SITES, skew=0.0)
        figures = {}
        for mode in modes:
            found(folder / mode, folder / "stores", mode, width, steps)
            carry_out(folder / mode)
            figures[mode] = figures_of(folder / mode)
            print(mode, json.dumps(figures[mode], indent=2), flush=True)
    if modes == MODES and not quick:
        print(
            write_result("federation", {"plan": {"sites": SITES, "batch": BATCH, "rounds": steps - COLD}, **figures}, seeds=[])
        )


def found(parties: Path, stores: Path, mode: str, width: int, steps: int) -> None:
    """Makes the parties."""
    config = parse_config(
        {
            "data": {"source": "store", "path": str(stores / EVALUATION)},
            "model": {"kind": "image", "image": "resnet18", "stem": "imagenet", "width": width},
            "bounding": {"group_size": GROUP_SIZE, "engine": "loop"},
            "privacy": {"noise_multiplier": 1.0, "accountant": "rdp", "batch": BATCH, "steps": steps},
            "training": {"device": "cpu", "checkpoint_every": steps},
            "evaluation": {"split": "none"},
        }
    )
    sites = [SiteFolder.create(parties / site_folder(n), site_folder(n), stores / site_folder(n)) for n in range(SITES)]
    options = {"trust": mode, "drops": 1, "colluders": 1, "deadline": 120.0}
    made = CoordinatorFolder.create(parties / "coordinator", config, [site.card for site in sites], **options)
    for site in sites:
        site.join(Terms.load(made.terms))


def carry_out(parties: Path) -> None:
    """The run. Its figures are in ``server.jsonl`` and in ``site-N.jsonl``."""
    os.environ["PYTHONPATH"] = str(_ROOT)  # the ServerApp's code is `benchmarks.rounds`
    with tempfile.TemporaryDirectory(prefix="dpfed-") as place:
        names, ports = [site_folder(number) for number in range(SITES)], free_ports(SITES)
        doors = {name: Path(place) / name / "door" for name in names}
        with loopback(Path(place) / "loopback", doors) as federation:
            for name, port in zip(names, ports, strict=True):
                command = [sys.executable, "-m", "benchmarks.timed_site", parties / name, doors[name], port]
                command += [federation.certificates, parties / f"{name}.jsonl"]
                federation.members.start(f"{name}-worker", command, {"OMP_NUM_THREADS": "1"})
            for name in names:
                federation.members.wait_for(f"{name}-worker", "ready", _PATIENCE)
            task = {"coordinator": str(parties / "coordinator"), "run": str(parties / "run"), "ports": ports}
            task |= {"authority": str(federation.certificates / "ca.crt"), "file": str(parties / "server.jsonl")}
            (parties / "task.json").write_text(json.dumps(task), encoding="utf-8")
            federation.submit(_ROOT / "benchmarks" / "round_app", {"task": str(parties / "task.json")})
            while federation.members.running(RUN):
                time.sleep(0.2)
            if not (parties / "run" / "results.json").exists():
                raise SystemExit(federation.members.text(RUN))


def figures_of(parties: Path) -> dict[str, Any]:
    """Medians over the rounds, in seconds, and the ratio of a round to what it consists of."""
    turns = _lines(parties / "server.jsonl")[COLD:]
    answers = [
        {line["step"]: line for line in _lines(parties / f"{site_folder(number)}.jsonl") if line["kind"] == "step"}
        for number in range(SITES)
    ]
    slowest = [max((site[turn["step"]] for site in answers), key=lambda line: line["answer"]) for turn in turns]
    for turn in turns:
        turn["compute"] = max(site[turn["step"]]["compute"] for site in answers)
        turn["round"] = turn["collect"] + turn["apply"]
        turn["flower"] -= turn["empty"]
    # Noise and update are computing, too: a run without institutions has them.
    ratios = {
        carrier: [turn["round"] / (turn["empty"] + turn[carrier] + turn["compute"] + turn["apply"]) for turn in turns]
        for carrier in ("tls", "flower")
    }
    return {
        "seconds": _medians(turns, ("round", "empty", "tls", "flower", "compute")),
        "quartiles_of_seconds": {
            part: _quartiles([turn[part] for turn in turns]) for part in ("round", "empty", "tls", "flower", "compute")
        },
        "ratio": {carrier: round(statistics.median(values), 3) for carrier, values in ratios.items()},
        "quartiles_of_ratio": {carrier: _quartiles(values) for carrier, values in ratios.items()},
        "hours_for_1200_rounds": round(RUN_LENGTH * statistics.median(turn["round"] for turn in turns) / 3600, 2),
        "seconds_at_server": _medians(turns, SERVER),
        "seconds_at_slowest_site": _medians(slowest, ("answer", *SITE)),
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _medians(lines: list[dict[str, Any]], parts: Iterable[str]) -> dict[str, float]:
    return {part: round(statistics.median(line.get(part, 0.0) for line in lines), 4) for part in parts}


def _quartiles(values: list[float]) -> list[float]:
    return [round(value, 4) for value in statistics.quantiles(values, n=4)]


if __name__ == "__main__":
    main(tuple(mode for mode in sys.argv[1:] if mode != "--quick") or MODES, "--quick" in sys.argv[1:])
