"""Discrete noise in a federation: added by the party whose part it is, or in shares that are added up as whole numbers."""

import json
import math

import numpy as np
import pytest
import torch

from dpfed.config import parse_config
from dpfed.federation.simulated import Simulation
from dpfed.federation.simulation import simulate
from dpfed.privacy.discrete_gaussian import Coins, discrete_gaussian
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.noise import DiscreteGaussianNoise, KeyedNoise, digest_of
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.messages import sign
from dpfed.protocol.vectors import grid_of
from dpfed.report.card import table_rows
from tests.federation.lab import SITES, Lab
from tests.sparing import sparing
from tests.training.records_of_worker import keep_only


@pytest.mark.parametrize("trust", ["central", "local"])
def test_a_federation_adds_it_once_for_whoever_is_to_add_it(discrete, tmp_path, monkeypatch, trust):
    """The sum's noise is a sum of points of the grid; in central mode one party's, in local mode each site's."""
    lab = Lab(discrete, tmp_path, trust=trust, drops=0, colluders=0)
    real, added = DiscreteGaussianNoise.steps, []
    monkeypatch.setattr(DiscreteGaussianNoise, "steps", lambda *a: added.append(a[3:]) or real(*a))
    total, clean = lab.server.aggregate(0), lab.clean(0)
    assert [purpose for purpose, *_ in added] == ([] if trust == "central" else ["share"] * SITES)
    if trust == "central":
        assert torch.equal(total.values, clean.values) and total.noise_std == 0
    ledger = Ledger.create(tmp_path / "coordinator.jsonl", lab.plan)
    noisy = lab.parts.learner.coordinator(Randomness.from_seed(9), ledger).release(0, total)
    variance = (noisy.double() - clean.numbers()).square().mean().item() / lab.plan.noise_std**2
    assert variance == pytest.approx(1 if trust == "central" else SITES, rel=6 * (2 / noisy.numel()) ** 0.5)
    if trust == "central":
        noise = KeyedNoise(lab.plan.noise_of(), Randomness.from_seed(9), "noise", lab.plan.fingerprint)
        assert torch.equal(noisy, noise.noisy(clean.values, 0))


def exact_sum(lab: Lab, step: int, arrived=range(SITES), moved=0):
    """The oracle: whole numbers, the sampler, and nothing of the protocol. The total, and what each site sends."""
    sums, grid, sent = lab.plan.grid_of(lab.terms.trust_model.honest), lab.grid, []
    per = round(grid.spacing / (sums.unit / sums.finer))
    for number in arrived:
        clean = lab.clean(step, [number]).values
        context = f"{lab.terms.fingerprint}/{digest_of(clean)}"
        coins = Coins(Randomness.from_seed(100 + number).stream("share", step, number, context))
        steps = clean.numpy() * sums.finer + discrete_gaussian(coins, clean.numel(), 31)
        sent.append([(2 * int(one) + per) // (2 * per) % 2**32 for one in steps])
    total = np.array([sum(column) % 2**32 for column in zip(*sent, strict=True)], dtype=np.uint32).view(np.int32)
    return torch.from_numpy((total * np.float64(grid.spacing)).astype(np.float32)), np.array(sent, dtype=np.uint32)


@pytest.mark.parametrize(("trust", "drops"), [("distributed", 0), ("distributed", 1), ("secure", 0), ("secure", 1)])
def test_shares_of_it_are_added_up_as_whole_numbers(discrete, tmp_path, trust, drops):
    lab = Lab(discrete, tmp_path, trust=trust, drops=drops, colluders=0)
    lab.grid = grid_of(lab.terms)
    if drops:
        lab.wire.tampers["node1"] = lambda question, reply: None if b'"kind": "sum"' in reply.header else reply
    arrived = [number for number in range(SITES) if not (drops and number == 1)]
    total = lab.server.aggregate(0)
    expected, sent = exact_sum(lab, 0, arrived)
    assert torch.equal(total.values, expected)
    messages = [np.frombuffer(r.vector, "<u4") for _, r in lab.wire.replies if b'"kind": "sum"' in r.header]
    travelled = [messages[number] for number in arrived]
    assert all(np.array_equal(a, b) for a, b in zip(travelled, sent, strict=True)) == (trust == "distributed")
    error = (total.values.double() - lab.clean(0, arrived).numbers()).square().mean().item() / lab.plan.noise_std**2
    assert error == pytest.approx(len(arrived) / lab.terms.trust_model.honest, rel=6 * (2 / total.values.numel()) ** 0.5)
    assert total.noise_std >= lab.plan.noise.multiplier * lab.plan.sensitivity
    ledger = Ledger.create(tmp_path / "coordinator.jsonl", lab.plan)
    noisy = lab.parts.learner.coordinator(Randomness.from_seed(9), ledger).release(0, total)
    assert torch.equal(noisy, expected)  # nobody adds noise a second time


def test_shares_suffice_where_one_partys_noise_would_be_more(discrete, tmp_path):
    """Each grid rounds the deviation up, by another amount: with this multiplier, one party's more than three parties'."""
    multiplier = discrete["privacy"]["noise_multiplier"] = 2.4
    lab = Lab(discrete, tmp_path, trust="distributed", drops=0, colluders=0)
    total = lab.server.aggregate(0)
    promised = multiplier * lab.plan.sensitivity
    assert promised <= total.noise_std < lab.plan.noise_std * (1 - 1e-9) < promised * (1 + 5e-9)
    lab.parts.learner.coordinator(Randomness.from_seed(9), Ledger.create(tmp_path / "coordinator.jsonl", lab.plan)).apply(
        0, total
    )


@pytest.mark.parametrize("trust", ["distributed", "secure"])
def test_a_sum_that_is_too_large_is_refused_on_the_grid_too(discrete, tmp_path, trust):
    lab = Lab(discrete, tmp_path, trust=trust, drops=1, colluders=0)

    def larger(question, reply):
        if b'"kind": "sum"' not in reply.header:
            return reply
        values = np.frombuffer(reply.vector, "<u4") + np.uint32(1 << 29)
        header = json.loads(bytes(reply.header))
        fields = {name: header[name] for name in header if name in ("step", "offer", "roster", "site", "release")}
        return sign(lab.identities[0], lab.terms.fingerprint, "sum", values.astype("<u4").tobytes(), **fields)

    lab.wire.tampers["node0"] = larger
    total = lab.server.aggregate(0)
    event = lab.events()[-1]
    if trust == "distributed":
        assert total is not None and event["missing"] == {
            "site-0": "the norm of its sum is larger than clipped groups and noise allow"
        }
    else:
        assert total is None and "larger than clipped groups and noise allow" in event["reason"]


@pytest.mark.parametrize("trust", ["distributed", "secure"])
def test_neighbours_integers_at_a_site_are_as_close_as_planned(discrete, tmp_path, trust):
    """What a record moves at its site, in steps of the exact sum, against the noise of the honest sites together."""
    discrete["bounding"]["clip_norm"] = 1e-5  # every group is as long as it may be
    lab = Lab(discrete, tmp_path, trust=trust, drops=0, colluders=1)
    grid, lengths = lab.plan.grid_of(lab.terms.trust_model.honest), []
    worker, _ = lab.worker(0)
    drawn = [int(index) for index in worker.draw(0).indices]

    def integers(gone: int) -> np.ndarray:
        one, _ = lab.worker(0)
        keep_only(one, lab.indices[0][lab.indices[0] != gone], lab.parts.store.keys)
        return one.bounded_sum(0).values.numpy()

    for index in drawn[:4]:
        lengths.append(math.sqrt(sum(int(step) ** 2 for step in integers(-1) - integers(index))))
    together = 2**31 / grid.finer * lab.terms.trust_model.honest**0.5  # the honest sites' parameter, in the same steps
    assert 0 < max(lengths) <= 2 * grid.radius
    assert together >= lab.plan.noise.multiplier * 2 * grid.radius


@pytest.mark.long
@pytest.mark.parametrize("trust", sparing(["central", "distributed", "secure", "local"], "secure"))
def test_a_simulated_federation_says_so_on_its_card(discrete, tmp_path, trust):
    discrete["privacy"]["steps"] = 2
    discrete["evaluation"] = {"split": "none"}
    card = simulate(parse_config(discrete), tmp_path / "run", Simulation(sites=4, trust=trust)).card.read_text()
    said, shared = table_rows(card)["Noise"], trust in ("distributed", "secure")
    assert said.startswith("discrete Gaussian, drawn exactly, in steps of " + ("5.38e-10" if shared else "9.31e-10"))
    assert "AES-256" in card and "The last bits of the noise" not in card
