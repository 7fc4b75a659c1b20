"""One mechanism, whatever carries it: with the same seeds, every transport releases the same noisy sums, bit for bit.

Two data owners, because a sum of two is the same in either order. A ledger holds a digest of every release.
"""

import contextlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

import dpfed.training.learner as trainers
from dpfed.artifacts.directory import RunDirectory
from dpfed.cli import main
from dpfed.config import parse_config
from dpfed.data.store.division import EVALUATION, divide_store, site_folder, site_of_records
from dpfed.errors import UserError
from dpfed.federation import simulation
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.coordinator.running import coordinate
from dpfed.federation.demo.loopback import RUN, loopback
from dpfed.federation.simulation import Simulation, resume, simulate
from dpfed.federation.site import serving
from dpfed.federation.site.allowed import keep_allowed
from dpfed.federation.site.folder import SiteFolder
from dpfed.federation.site.serving import load_site
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.protocol.terms import Terms
from dpfed.runs.build import build
from dpfed.training.learner import Partition
from dpfed.training.loop import train
from dpfed.training.transport import InProcess
from tests.cluster.processes import Processes, pretrain
from tests.federation.lab import Wire
from tests.patience import at_most

SEED, SKEW, SITES = 7, 0.8, 2


@pytest.fixture
def config(tiny):
    tiny["privacy"] = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 64, "steps": 4, "seed": SEED}
    tiny["evaluation"] = {"split": "none"}
    return parse_config(tiny)


@pytest.fixture
def locally(config, tmp_path):
    """What two owners in this process release, without any protocol."""
    with released_locally(config, tmp_path) as released:
        yield released


@contextlib.contextmanager
def released_locally(config, folder):
    """The same; meanwhile torch has one thread, as in the processes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more add up in another order
    try:
        yield _released(config, folder)
    finally:
        torch.set_num_threads(threads)


def _released(config, folder):
    parts = build(config, Randomness.from_seed(SEED), world_size=SITES)
    indices = parts.store.split("train")
    sites = site_of_records(parts.store, SITES, SKEW)[indices]
    counts = [int((sites == number).sum()) for number in range(SITES)]
    assert parts.plan.apportioned(counts) == [parts.plan.groups_of(number, SITES) for number in range(SITES)]
    owners = Randomness.from_seed(SEED).for_ranks()
    workers = [
        parts.learner.worker(owners, partition=Partition(number, indices[sites == number], groups))
        for number, groups in enumerate(parts.plan.apportioned(counts))
    ]
    ledger = Ledger.create(folder / "local.jsonl", parts.plan)
    train(InProcess(workers), parts.learner.coordinator(Randomness.from_seed(SEED), ledger), range(parts.plan.steps))
    return digests(ledger.path)


def digests(ledger: Path) -> list[str]:
    return [line["digest"] for line in map(json.loads, ledger.read_text().splitlines()) if line.get("charged")]


def divided_as_sites(rank, *arguments):
    """A process of a cluster in which records are divided, not groups, and a record's owner is its site."""
    trainers.Learner.divides_groups = False
    trainers.partition_keys = lambda store, privacy: site_of_records(store, SITES, SKEW).astype(np.uint64)
    sys.argv = ["dpfed", *map(str, arguments)]
    main()


@pytest.mark.long
def test_a_cluster_releases_the_same(locally, config, tmp_path):
    source = tmp_path / "config.toml"
    source.write_text(config.dump())
    with Processes(SITES, tmp_path / "out", divided_as_sites, *pretrain(source, tmp_path / "run")) as processes:
        assert processes.wait() == [0] * SITES, processes.text
    assert digests(tmp_path / "run" / "ledger.jsonl") == locally


@pytest.mark.long
def test_a_simulated_federation_releases_the_same(locally, config, tmp_path):
    assert digests(simulate(config, tmp_path / "run", Simulation(sites=SITES, skew=SKEW)).ledger) == locally


def institutions(config, shapes, folder):
    """The parties on disk. With a fixed seed, which real parties refuse, they sign up past their own checks."""
    divide_store(shapes.path, folder / "stores", SITES, SKEW)
    sites = [
        SiteFolder.create(folder / site_folder(n), site_folder(n), folder / "stores" / site_folder(n)) for n in range(SITES)
    ]
    data = config.data.model_copy(update={"path": str(folder / "stores" / EVALUATION)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpfed.federation.coordinator.folder.refuse_proposal", lambda *_: None)
        made = CoordinatorFolder.create(
            folder / "coordinator", config.model_copy(update={"data": data}), [site.card for site in sites], deadline=60.0
        )
    terms = Terms.load(made.terms)
    for site in sites:
        (site.path / "secret.key").write_bytes(Randomness.from_seed(SEED).for_ranks().master)
        Ledger.create(site.ledger, terms.privacy_plan)
        terms.save(site.path / "terms.json")
        keep_allowed(site.path / "allowed.json", terms)
    return sites, made


@pytest.mark.long
def test_institutions_release_the_same(locally, config, shapes, tmp_path):
    sites, made = institutions(config, shapes, tmp_path)
    wire = Wire({site.path.name: load_site(site, print) for site in sites})
    run = coordinate(made.path, tmp_path / "run", wire, Silent())
    assert digests(run.ledger) == locally
    assert [digests(site.ledger) for site in sites] != [locally] * SITES  # what they pay for is their own sum
    assert run.finished and not (run.path / "secret.key").exists()
    assert coordinate(made.path, tmp_path / "run", wire, Silent()).path == run.path  # a finished run stays as it is


def train_over_flower(sites, made, run):
    """A run whose parties are processes, with Flower between them."""
    with tempfile.TemporaryDirectory(prefix="dpfed-") as place:
        sockets = {site.path.name: Path(place) / site.path.name / "door" for site in sites}
        with loopback(Path(place) / "loopback", sockets) as federation:
            for site in sites:
                command = ["dpfed", "site", "serve", site.path, "--socket", sockets[site.path.name]]
                federation.members.start(f"{site.path.name}-worker", command, {"OMP_NUM_THREADS": "1"})
                federation.members.wait_for(f"{site.path.name}-worker", "ready", at_most(120))
            root = Path(__file__).resolve().parents[2]
            federation.submit(root, {"federation": str(made.path), "run": str(run)})
            federation.members.wait(RUN, at_most(300))


@pytest.mark.slow
def test_institutions_with_flower_between_them_release_the_same(locally, config, shapes, tmp_path):
    sites, made = institutions(config, shapes, tmp_path)
    train_over_flower(sites, made, tmp_path / "run")
    assert digests(tmp_path / "run" / "ledger.jsonl") == locally


@pytest.mark.long
def test_a_simulation_that_was_interrupted_goes_on(config, tmp_path):
    """Killed between a release and the next step, it repeats nothing and asks no site twice."""

    class Killed(Exception):
        pass

    calls = []
    aggregate = simulation.Federation.aggregate

    def killed(self, step):
        calls.append(step)
        total = aggregate(self, step)
        if len(calls) == 3:
            raise Killed  # the sites have answered; the sum is lost
        return total

    simulation.Federation.aggregate = killed
    try:
        with pytest.raises(Killed):
            simulate(config, tmp_path / "run", Simulation(sites=SITES, skew=SKEW))
    finally:
        simulation.Federation.aggregate = aggregate
    run = resume(tmp_path / "run")
    lines = [json.loads(line) for line in run.journal.read_text().splitlines()]
    assert [line["event"] for line in lines if line["step"] == 2] == ["opened", "collected", "discarded"]
    assert "its sums are in 3 steps" in run.card.read_text()
    assert len(digests(run.ledger)) == 4
    for site in run.sites.iterdir():
        steps = [line["step"] for line in map(json.loads, site.read_text().splitlines()) if line.get("charged")]
        assert steps == [0, 1, 2, 3]


def test_the_coordinator_holds_the_run_and_a_site_its_folder(config, shapes, tmp_path, monkeypatch):
    """A second one would ask, or answer, for the same steps again."""
    from dpfed.federation.coordinator import running

    sites, made = institutions(config, shapes, tmp_path)
    held = []

    def taken(lock):
        with pytest.raises(UserError, match=r"in use|is served"), lock():
            pass
        held.append(lock)

    monkeypatch.setattr(running, "run_job", lambda *_: taken(RunDirectory.open(tmp_path / "run").locked))
    for _ in range(2):
        coordinate(made.path, tmp_path / "run", Wire({}), Silent())
    monkeypatch.setattr(serving, "serve", lambda *_: taken(SiteFolder.open(sites[0].path).locked))
    serving.serve_site(sites[0], tmp_path / "door", print)
    assert len(held) == 3


@pytest.mark.long
def test_an_older_checkpoint_will_do(config, shapes, tmp_path):
    """The newest one is damaged: the releases since the one before are kept, for no site answers twice."""

    class Stopped(Exception):
        pass

    class Watch(Silent):
        def stage(self, name, total):
            def advance(done):
                if done == 3:
                    raise Stopped

            return advance

    config = config.model_copy(update={"training": config.training.model_copy(update={"checkpoint_every": 1})})
    sites, made = institutions(config, shapes, tmp_path)
    wire = Wire({site.path.name: load_site(site, print) for site in sites})
    with pytest.raises(Stopped):
        coordinate(made.path, tmp_path / "run", wire, Watch())
    sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1].unlink()
    run = coordinate(made.path, tmp_path / "run", wire, Silent())
    assert run.finished
    assert [line["event"] for line in map(json.loads, run.journal.read_text().splitlines())] == ["opened", "collected"] * 4
