"""Runs as they are assembled and carried out in one process: weights, arithmetic, and who shared the work."""

import time

import pytest
import torch

from dpfed.callbacks import Callback
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.federation.coordinator.rounds import Federation
from dpfed.federation.simulation import Simulation, simulate
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.runs import build as building
from dpfed.runs.build import build
from dpfed.runs.job import create_job
from dpfed.runs.preflight import Preflight
from dpfed.runs.pretraining import pretrain
from dpfed.runs.running import run_job
from dpfed.training.transport import InProcess


@pytest.mark.long
def test_ledger_and_card_say_how_many_owners_shared_a_run(tiny, tmp_path):
    tiny["privacy"]["steps"], tiny["evaluation"] = 2, {"split": "none"}
    job = create_job(Preflight.of(parse_config(tiny), tmp_path / "run", world_size=3), Silent())

    def connect(job):
        ranks = [job.parts.learner.replace(rank=number) for number in range(3)]
        return InProcess([rank.worker(job.randomness.for_ranks()) for rank in ranks])

    with job.run.locked():
        run = run_job(job, Silent(), connect)
    assert Ledger.open(run.ledger).world_size == 3
    assert "central: up to 3 workers of one cluster" in run.card.read_text()


def test_initial_weights_follow_from_the_secret_alone(tiny):
    config = parse_config(tiny)
    before = torch.get_rng_state()
    one, same, other = (build(config, Randomness.from_seed(seed)).model.state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert any(not torch.equal(value, other[name]) for name, value in one.items())


def test_a_model_that_mixes_records_is_refused_unread(tiny, monkeypatch):
    honest_model_of = building.model_of

    def mixing(*arguments, **options):
        model = honest_model_of(*arguments, **options)
        honest = model.forward
        model.forward = lambda views: {name: z + 0.1 * z.mean(0) for name, z in honest(views).items()}
        return model

    monkeypatch.setattr(building, "model_of", mixing)
    monkeypatch.setattr(building, "records_of", lambda *_: pytest.fail("records are read"))
    with pytest.raises(UserError, match="mixes"):
        build(parse_config(tiny))


def test_products_are_not_rounded_to_tf32(tiny, monkeypatch):
    """On a GPU a norm and the gradient that it clips could then differ by a thousandth."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    build(parse_config(tiny))
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.long
@pytest.mark.parametrize("who", ["sites", "nobody"])
def test_what_follows_from_a_release_leaves_after_its_payment(tiny, tmp_path, monkeypatch, who):
    """Each step is paid for slowly. Only where nobody sees parameters in between may the next sum be computed meanwhile."""
    tiny["privacy"]["steps"], tiny["evaluation"] = 4, {"split": "none"}
    monkeypatch.setattr(Callback, "is_due", lambda self, step: step.done == 4)  # metrics and checkpoints wait, too
    charge, place, paid = Ledger.charge, tmp_path / "run" / "ledger.jsonl", []
    monkeypatch.setattr(Ledger, "charge", lambda self, *releases: (time.sleep(0.2), charge(self, *releases)))
    owner = Federation if who == "sites" else InProcess
    aggregate = owner.aggregate

    def watched(self, step):
        paid.append(Ledger.open(place).charged)
        return aggregate(self, step)

    monkeypatch.setattr(owner, "aggregate", watched)
    if who == "sites":
        simulate(parse_config(tiny), place.parent, Simulation(sites=2))
    else:
        pretrain(parse_config(tiny), place.parent)
    assert paid == [0, 1, 2, 3] if who != "nobody" else paid[1:] != [1, 2, 3]
