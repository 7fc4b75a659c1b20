"""Discrete noise in a federation: added by the party whose part it is, and refused where it would come in shares."""

import pytest
import torch

from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.federation.simulated import Simulation
from dpfed.federation.simulation import simulate
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.noise import DiscreteGaussianNoise, KeyedNoise
from dpfed.privacy.randomness import Randomness
from dpfed.report.card import table_rows
from tests.federation.lab import SITES, Lab


@pytest.mark.parametrize("trust", ["central", "local"])
def test_a_federation_adds_it_once_for_whoever_is_to_add_it(discrete, tmp_path, monkeypatch, trust):
    """The sum's noise is a sum of points of the grid; in central mode one party's, in local mode each site's."""
    lab = Lab(discrete, tmp_path, trust=trust, drops=0, colluders=0)
    real, added = DiscreteGaussianNoise.add_, []
    monkeypatch.setattr(DiscreteGaussianNoise, "add_", lambda *a: added.append(a[3:]) or real(*a))
    total, clean = lab.server.collect(0), lab.clean(0)
    assert [purpose for purpose, *_ in added] == ([] if trust == "central" else ["share"] * SITES)
    if trust == "central":
        assert torch.equal(total.values, clean) and total.noise_std == 0
    ledger = Ledger.create(tmp_path / "coordinator.jsonl", lab.plan)
    noisy = lab.parts.coordinator(Randomness.from_seed(9), ledger)._release(0, total)
    variance = (noisy.double() - clean.double()).square().mean().item() / lab.plan.noise_std**2
    assert variance == pytest.approx(1 if trust == "central" else SITES, rel=6 * (2 / clean.numel()) ** 0.5)
    if trust == "central":
        expected = KeyedNoise(lab.plan.noise, Randomness.from_seed(9), "noise", lab.plan.fingerprint).add_(clean.clone(), 0)
        assert torch.equal(noisy, expected)


@pytest.mark.parametrize("trust", ["distributed", "secure"])
def test_shares_of_it_are_refused(discrete, tmp_path, trust):
    with pytest.raises(UserError, match=f"with trust = '{trust}' the sites add shares"):
        Lab(discrete, tmp_path, trust=trust)


def test_a_simulated_federation_says_so_on_its_card(discrete, tmp_path):
    discrete["privacy"]["steps"] = 1
    discrete["evaluation"] = {"split": "none"}
    run = simulate(parse_config(discrete), tmp_path / "run", Simulation(sites=2, trust="central"))
    assert table_rows(run.card.read_text())["Noise"].startswith("discrete")
