"""A Ray cluster on machines of their own, by the commands of cluster/README.md: cuts, lost machines, restarts."""

import time

import pytest

pytest.importorskip("ray")

from dpfed.artifacts.directory import RunDirectory  # noqa: E402
from dpfed.artifacts.verification import verify  # noqa: E402
from dpfed.data.generated.shapes import write_shapes  # noqa: E402
from dpfed.privacy.ledger import Ledger  # noqa: E402
from tests.apart.machines import no_other_clock, until  # noqa: E402
from tests.apart.ray_machines import Cluster  # noqa: E402
from tests.patience import exit_code  # noqa: E402

STEPS, RATE = 40, "8mbit"  # a step then takes some seconds, half of them on the way
SETTINGS = {"privacy.steps": STEPS, "privacy.batch": 512, "evaluation.every": 0, "training.device": "cpu"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(network, place):
    write_shapes(place / "shapes", train=2000, validation=0, test=200)
    made = Cluster(network)
    for machine in made.workers:
        network.slow(machine, RATE)
    return made


class Run:
    """A run that is submitted, and what can be seen of it."""

    def __init__(self, cluster, place, name, where=None, workers="2", resume=False):
        self.cluster = cluster
        self.folder = place / "runs" / name
        self.log = f"{name}{resume:d}"
        self.where = where or cluster.head
        options = [f"--set {key}={value}" for key, value in SETTINGS.items()] + ["--resume"] * resume
        changes = {"ray imagenet": "ray quickstart", "/shared/stores/imagenet": f"{place}/shapes", " --resume": ""}
        changes |= {"--workers 64": f"--workers {workers}", "--gpus-per-worker 1": "--gpus-per-worker 0"}
        changes |= {"/shared/runs/imagenet": str(self.folder)}
        self.process = cluster.submit(self.where, self.log, changes, " ".join(options))

    @property
    def said(self):
        return self.where.text(self.log)

    @property
    def charged(self):
        ledger = self.folder / "ledger.jsonl"
        return ledger.read_bytes().count(b'"charged": true') if ledger.exists() else 0

    def reaches(self, steps, seconds=400):
        """Waits for so many paid steps; the seconds that it took."""
        began = time.monotonic()
        until(lambda: self.process.poll() is not None or self.charged >= steps or None, f"step {steps}: {self.said}", seconds)
        assert self.charged >= steps, self.said
        return time.monotonic() - began

    def ends(self, seconds=600):
        """Waits for the end: every step was paid for once, and what is said of privacy is what the ledger says."""
        assert exit_code(self.process, seconds) == 0, self.said
        assert "Traceback" not in self.said and "(raylet" not in self.said
        run = RunDirectory.open(self.folder)
        ledger = Ledger.open(run.ledger)
        assert run.finished and ledger.charged == STEPS and all(ledger.release_of(step) for step in range(STEPS))
        assert ledger.epsilon == ledger.plan.epsilon(STEPS) <= 8
        assert not [check for check in verify(run.card, self.folder) if check.wrong]


def phase(run, cluster, name):
    """Waits until a step is between two, in its computing, or in its collective, as the traffic tells."""
    before = run.charged
    until(lambda: run.charged > before or None, "step", 100)
    if name != "between":

        def busy():
            sent = [machine.sent() for machine in cluster.workers]
            time.sleep(0.1)
            return max(machine.sent() - one for machine, one in zip(cluster.workers, sent, strict=True))

        until(lambda: (busy() > 40_000) == (name == "collective") or None, name, 60)


def test_a_job_from_a_fourth_machine_survives_short_cuts(cluster, network, place):
    run = Run(cluster, place, "cuts", where=cluster.desk)
    run.reaches(2)
    for where in ("between", "computing", "collective"):
        for seconds in (5, 30):
            phase(run, cluster, where)
            before, heard = run.charged, len(run.said)
            network.cut(cluster.workers[1])
            time.sleep(seconds)
            network.mend(cluster.workers[1])
            print(f"{seconds} s, {where}: goes on after {run.reaches(before + 2, 300):.0f} s more")
            # Ray may give up a worker that it has not heard of for half a minute: then dpfed restarts all of them.
            assert seconds > 5 or "died" not in run.said[heard:]
    run.ends()


def test_a_machine_cut_off_for_minutes_takes_part_again(cluster, network, place):
    run, lost = Run(cluster, place, "long"), cluster.workers[1]
    run.reaches(3)
    before = run.charged
    network.cut(lost)
    until(lambda: "machines are missing: the cluster has room for 1 of 2 workers" in run.said or None, "word of it", 200)
    time.sleep(200)
    network.mend(lost)
    assert run.process.poll() is None and run.charged <= before + 1
    cluster.start_node(lost)
    print(f"goes on {run.reaches(before + 2):.0f} s after Ray is started there")
    assert "the machines that were missing are back" in run.said
    run.ends()


def test_a_range_of_workers_goes_on_without_a_lost_machine(cluster, network, place):
    run = Run(cluster, place, "gone", workers="1-2")
    run.reaches(3)
    before = run.charged
    cluster.workers[1].kill()
    print(f"goes on after {run.reaches(before + 2):.0f} s")
    run.ends()
    cluster.workers[1].boot(network)
    cluster.start_node(cluster.workers[1])


@pytest.mark.parametrize("clock", [0, 600])
def test_a_run_survives_the_restart_of_the_heads_machine(cluster, network, place, clock):
    if clock and no_other_clock():
        pytest.skip(no_other_clock())
    run = Run(cluster, place, f"head{clock}")
    run.reaches(3)
    before = run.charged
    cluster.head.kill()
    cluster.head.clock = clock  # and comes back with another time of day
    cluster.head.boot(network)
    cluster.start()
    again = Run(cluster, place, f"head{clock}", resume=True)
    again.reaches(before + 2)
    again.ends()
