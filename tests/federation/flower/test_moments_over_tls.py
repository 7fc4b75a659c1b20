"""Private moments by three sites, as processes over TLS: one is killed in the second round, and the noise is still there."""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from dpfed.artifacts.directory import RunDirectory  # noqa: E402
from dpfed.config import parse_config  # noqa: E402
from dpfed.data.store.division import EVALUATION, divide_store, site_folder  # noqa: E402
from dpfed.federation.coordinator.folder import CoordinatorFolder  # noqa: E402
from dpfed.federation.demo.loopback import RUN, loopback  # noqa: E402
from dpfed.federation.site.folder import SiteFolder  # noqa: E402
from dpfed.federation.site.serving import site_config  # noqa: E402
from dpfed.models.parameters import TrainableVector  # noqa: E402
from dpfed.privacy.ledger import Ledger  # noqa: E402
from dpfed.protocol.journal import Journal  # noqa: E402
from dpfed.protocol.terms import Terms  # noqa: E402
from dpfed.runs.build import build
from dpfed.training.learner import Partition  # noqa: E402
from tests.patience import Patience  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
FIRST, *OTHERS = map(site_folder, range(3))
LONGEST = 300.0  # seconds

pytestmark = pytest.mark.slow


def found(parties, stores, config, **options):
    config["data"] = {"source": "store", "path": str(stores / EVALUATION), "size": 16}
    start = config["model"]["start"]
    sites = [SiteFolder.create(parties / name, name, stores / name, start=start) for name in (FIRST, *OTHERS)]
    made = CoordinatorFolder.create(parties / "coordinator", parse_config(config), [site.card for site in sites], **options)
    for site in sites:
        site.join(Terms.load(made.terms))
    return Terms.load(made.terms)


def run_federation(parties, run, kept):
    """The run; whatever sums are released are kept, also when the run forgets them. Returns what it said."""
    kept.mkdir()
    with tempfile.TemporaryDirectory(prefix="dpfed-") as place:
        sockets = {name: Path(place) / name / "door" for name in (FIRST, *OTHERS)}
        with loopback(Path(place) / "loopback", sockets) as federation:
            for name, socket in sockets.items():
                command = ["dpfed", "site", "serve", parties / name, "--socket", socket]
                if name == FIRST:
                    faults = json.dumps({1: "killed in mid-step"})
                    command = [sys.executable, "-m", "benchmarks.hostile_site", parties / name, socket, faults]
                federation.members.start(f"{name}-worker", command, {"OMP_NUM_THREADS": "1"})
            for name in sockets:
                federation.members.wait_for(f"{name}-worker", "ready", LONGEST)
            federation.submit(ROOT, {"federation": str(parties / "coordinator"), "run": str(run.path)})
            patience = Patience(LONGEST)
            while federation.members.running(RUN) and not patience.ended:
                for file in (run.path / "releases").glob("*.f32"):
                    if not (kept / file.name).exists():
                        (kept / file.name).hardlink_to(file)
                time.sleep(0.02)
            return federation.members.text(RUN)


def clean(parties, terms, names, released):
    """What sites add up to in the second round without noise, behind the first round's release."""
    total = torch.zeros_like(released, dtype=torch.float64)
    for name in names:
        folder = SiteFolder.open(parties / name)
        number, randomness = terms.number_of(folder.identity().signing_key), folder.randomness()
        parts = build(site_config(terms, folder.settings()), randomness, terms=terms)
        vector = TrainableVector(parts.model)
        vector.assign(released)
        partition = Partition(number, parts.store.split("train"), terms.sites[number].groups)
        total += parts.learner.worker(randomness, partition=partition).bounded_sum(1).numbers()
    return total, parts.model.moments.layout


def test_a_site_killed_in_the_second_round_is_left_out_of_it(tiny_moments, tmp_path, shapes, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    divide_store(shapes.path, tmp_path / "stores", 3, skew=0.5)
    parties, run, kept = tmp_path / "parties", RunDirectory(tmp_path / "run"), tmp_path / "kept"
    terms = found(parties, tmp_path / "stores", tiny_moments, trust="secure", drops=1, colluders=0, deadline=30.0)
    said = run_federation(parties, run, kept)
    assert run.finished, said[-4000:]
    first, second = (line for line in Journal(run.journal).lines if line["event"] == "collected")
    assert not first["missing"] and (second["arrived"], list(second["missing"])) == (OTHERS, [FIRST])
    assert Ledger.open(run.ledger).charged == 2
    one, two = (torch.from_numpy(np.fromfile(file, dtype=np.float32)) for file in sorted(kept.glob("*.f32")))
    plan = terms.privacy_plan
    without, layout = clean(parties, terms, OTHERS, one / plan.divisor)
    noise = (two - without)[layout.place(1)]
    assert noise.std().item() >= plan.noise_std * (1 - 5 / np.sqrt(2 * len(noise)))
    with_it, _ = clean(parties, terms, (FIRST, *OTHERS), one / plan.divisor)
    assert (with_it - without).norm() > 3 * plan.noise_std  # there would have been something to see
