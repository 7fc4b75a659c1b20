"""Private progress in a federation: the sites' figures are in their sums, and they are asked about one threshold."""

import pytest
import torch

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.answers import Reason
from dpfed.protocol.messages import alleged, sign
from dpfed.protocol.vectors import encoded
from tests.federation.lab import SITES, Lab


@pytest.fixture
def progress(tiny):
    tiny["bounding"]["clipping"] = "adaptive"
    return {**tiny, "diagnostics": "private", "progress": {"share": 0.2, "phase": 2}, "evaluation": {"split": "none"}}


def of_the_workers(lab, threshold: float) -> BoundedSum:
    workers = [lab.worker(number)[0] for number in range(SITES)]
    for worker in workers:
        worker.threshold = threshold
    first, *others = (worker.bounded_sum(0) for worker in workers)
    return sum(others, first)


@pytest.mark.parametrize("trust", ["central", "distributed", "secure", "local"])
def test_the_sum_has_all_sites_figures_with_the_modes_noise(progress, tmp_path, trust):
    lab = Lab(progress, tmp_path, trust=trust, drops=0, colluders=0)
    lab.server.set_clip_threshold(3.0)
    total, clean = lab.server.aggregate(0), of_the_workers(lab, 3.0)
    assert total.values.numel() == clean.values.numel() and total.sensitivity == lab.plan.sensitivity
    if trust == "central":
        assert torch.equal(total.values, clean.values)
    else:
        assert total.noise_std >= lab.plan.noise_std
        assert (total.values - clean.numbers())[-2:].abs().min() > 0
        assert (total.values - clean.numbers()).std() == pytest.approx(total.noise_std, rel=0.1)
    coordinator = lab.parts.learner.coordinator(
        Randomness.from_seed(9), Ledger.create(tmp_path / "coordinator.jsonl", lab.plan)
    )
    assert coordinator.apply(0, total).window is None
    window = coordinator.discard(1).window
    expected = lab.plan.statistics.error(max(total.noise_std, lab.plan.noise_std))
    assert window.share_error == pytest.approx(1.96 * expected)  # of the noise that is there


@pytest.mark.parametrize("longer", [False, True])
def test_a_sites_sum_is_as_long_as_its_groups_and_figures_can_be(progress, tmp_path, longer):
    """Every group at a corner of its box: all gradients of length C in one direction, and all figures at one end."""
    lab = Lab(progress, tmp_path, drops=0)
    statistics, groups = lab.plan.statistics, lab.terms.sites[0].groups

    def at_the_corner(question, reply):
        numbers = TrainableVector(lab.parts.model).numel + lab.plan.statistics_count
        values = torch.zeros(numbers, dtype=torch.float64)
        values[0] = groups * lab.plan.bounding.clip_norm
        values[-lab.plan.statistics_count :] = groups * statistics.unit / 2
        fields = {name: value for name, value in alleged(reply).items() if name in ("step", "site", "release")}
        vector = encoded((values * (1.01 if longer else 1.0) / lab.plan.grid_of().unit).long())
        return sign(lab.identities[0], lab.terms.fingerprint, "sum", vector, **fields)

    lab.wire.tampers["node0"] = lambda question, reply: (
        at_the_corner(question, reply) if alleged(reply).get("kind") == "sum" else reply
    )
    lab.server.set_clip_threshold(3.0)
    lab.server.aggregate(0)
    assert lab.events()[-1]["missing"] == (
        {"site-0": "the norm of its sum is larger than clipped groups and noise allow"} if longer else {}
    )


@pytest.mark.parametrize("threshold", [None, -1.0, "3", float("inf"), float("nan"), True])
def test_a_site_answers_no_question_without_a_threshold(progress, tmp_path, threshold):
    lab = Lab(progress, tmp_path, drops=0)
    if threshold is not None:
        lab.server.set_clip_threshold(threshold)
    assert lab.server.aggregate(0) is None
    assert Reason.MALFORMED in str(lab.events()[-1]["missing"]) and lab.ledger(0).charged == 0
