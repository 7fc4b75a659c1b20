"""Private moments by three sites, as processes over TLS: one is killed in the second round, and the noise is still there."""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

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
from dpfed.runs import public_basis  # noqa: E402
from dpfed.runs.build import build  # noqa: E402
from dpfed.training.learner import Partition  # noqa: E402
from tests.frozen_towers import frozen  # noqa: E402
from tests.patience import Patience  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
FIRST, *OTHERS = map(site_folder, range(3))
LONGEST = 300.0  # seconds

pytestmark = pytest.mark.slow


def found(parties, stores, config, **options):
    config["data"] = {"source": "store", "path": str(stores / EVALUATION), "size": 16}
    copies = {name: config["model"][name] for name in ("start", "weights", "text") if name in config["model"]}
    sites = [SiteFolder.create(parties / name, name, stores / name, **copies) for name in (FIRST, *OTHERS)]
    made = CoordinatorFolder.create(parties / "coordinator", parse_config(config), [site.card for site in sites], **options)
    for site in sites:
        site.join(Terms.load(made.terms))
    return Terms.load(made.terms)


def run_federation(parties, run, kept, faults):
    """The run; whatever sums are released are kept, also when the run forgets them. Returns what it said.

    Args:
        faults: of the first site, by step.
    """
    kept.mkdir()
    with tempfile.TemporaryDirectory(prefix="dpfed-") as place:
        sockets = {name: Path(place) / name / "door" for name in (FIRST, *OTHERS)}
        with loopback(Path(place) / "loopback", sockets) as federation:
            for name, socket in sockets.items():
                command = ["dpfed", "site", "serve", parties / name, "--socket", socket]
                if name == FIRST and faults:
                    command = [sys.executable, "-m", "benchmarks.hostile_site", parties / name, socket, json.dumps(faults)]
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
    said = run_federation(parties, run, kept, {1: "killed in mid-step"})
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


def test_a_public_basis_travels_in_the_terms(tiny_moments, tmp_path, shapes, monkeypatch):
    """The coordinator makes it, and sites that never saw its records add up their sums with the same numbers."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(public_basis, "GENERATED", 120)
    divide_store(shapes.path, tmp_path / "stores", 3, skew=0.5)
    parties, run, kept = tmp_path / "parties", RunDirectory(tmp_path / "run"), tmp_path / "kept"
    tree = frozen(tiny_moments, tmp_path)
    del tree["adaptation"]
    terms = found(parties, tmp_path / "stores", tree, trust="secure", drops=1, colluders=0, deadline=60.0)
    said = run_federation(parties, run, kept, {})
    assert run.finished, said[-4000:]
    assert Ledger.open(run.ledger).charged == 2
    basis, heads = public_basis.basis_in(terms), load_file(run.model / "heads.safetensors")
    for side, side_basis in basis.bases.items():
        assert torch.equal(heads[f"{side}.projection"], side_basis.rows[: len(heads[f"{side}.projection"])])
        assert torch.equal(heads[f"{side}.origin"], side_basis.centre)
    assert basis.fingerprint in run.card.read_text()
    one, two = (torch.from_numpy(np.fromfile(file, dtype=np.float32)) for file in sorted(kept.glob("*.f32")))
    total, layout = clean(parties, terms, (FIRST, *OTHERS), one / terms.privacy_plan.divisor)
    noise = (two - total)[layout.place(1)]
    least = terms.privacy_plan.noise_std
    assert least * (1 - 5 / np.sqrt(2 * len(noise))) <= noise.std().item() <= 2 * least  # the sums were of these very maps
