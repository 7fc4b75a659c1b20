"""Private moments among sites: two rounds, in every mode of trust, also without a site, and nothing clean travels."""

import hashlib

import numpy as np
import pytest
import torch

from dpfed.errors import UserError
from dpfed.federation.site.folder import SiteSettings
from dpfed.federation.site.serving import require_copies
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import shared_noise
from dpfed.training.loop import train
from tests.federation.lab import Lab
from tests.sparing import halved

MODES = {"central": {}, "distributed": {"drops": 1}, "secure": {"drops": 1, "colluders": 0}, "local": {}}


@pytest.fixture
def agreed(tiny_moments, aligned_start):
    """A configuration that names its starting weights, as that of terms does."""
    tiny_moments["model"]["start_digest"] = hashlib.sha256(aligned_start.read_bytes()).hexdigest()
    return tiny_moments


def released(lab, missing_from=2):
    """Runs both rounds, without the last site from one on; returns the noisy sums, as the coordinator's model has them."""
    coordinator = lab.parts.learner.coordinator(Randomness.from_seed(7), lab.paid)
    for step in range(2):
        lab.wire.gone = {"node2"} if step >= missing_from else set()
        train(lab.server, coordinator, [step])
    return TrainableVector(lab.parts.model).gather() * lab.plan.divisor


def clean(lab, missing_from):
    """What the sites that came would have summed up without noise, at the released centre."""
    layout = lab.parts.model.moments.layout
    parts = []
    for step in range(2):
        parts.append(lab.clean(step, range(3 if step < missing_from else 2)).numbers()[layout.place(step)])
    return torch.cat(parts)


@pytest.mark.parametrize(("mode", "missing_from"), halved(MODES, [2, 1, 0]))
def test_two_rounds_release_the_moments_with_the_terms_noise(agreed, tmp_path, mode, missing_from):
    lab = Lab(agreed, tmp_path, trust=mode, **MODES[mode])
    noise = released(lab, missing_from) - clean(lab, missing_from)
    std = shared_noise(lab.plan, lab.terms).std or lab.plan.noise_std
    count = len(noise)
    # At least the plan's, whoever is missing, and no more than all sites' together.
    assert lab.plan.noise_std * (1 - 5 / np.sqrt(count)) <= noise.std().item() <= std * (1 + 5 / np.sqrt(count))
    assert lab.plan.steps == 2 and lab.ledger(0).charged == 2
    assert lab.ledger(2).charged == missing_from


@pytest.mark.parametrize("lost", [0, 1])
def test_a_round_of_too_few_sites_is_charged_and_never_released(agreed, tmp_path, lost):
    lab = Lab(agreed, tmp_path, trust="secure", **MODES["secure"])
    coordinator, layout = (lab.parts.learner.coordinator(Randomness.from_seed(7), lab.paid), lab.parts.model.moments.layout)
    for step in range(2):
        killed = ("node0", "node1") if step == lost else ()
        lab.wire.tampers = dict.fromkeys(killed, lambda asked, reply: None if b'"kind": "step"' in asked.header else reply)
        train(lab.server, coordinator, [step])
    released = lab.parts.model.moments.released
    assert [bool(released[layout.place(step)].any()) for step in range(2)] == [lost == 1, lost == 0]
    assert lab.ledger(2).charged == 2 and lab.paid.charged == 2
    assert any("1 of 3 sites answered, 2 sites are needed" in note for note in lab.notes)
    heads = [lab.parts.model.moments.head(side).matrix for side in ("image", "text")]
    assert all(torch.allclose(head, torch.eye(len(head)), atol=1e-5) for head in heads) == (lost == 1)  # the public model


def test_sites_that_share_the_noise_send_no_clean_number(agreed, tmp_path):
    lab = Lab(agreed, tmp_path, trust="distributed")
    released(lab)
    for number in range(3):
        worker, _ = lab.worker(number)
        without_noise = worker.bounded_sum(0).numbers()
        sent = [reply.vector for address, reply in lab.wire.replies if address == f"node{number}" and len(reply.vector)]
        first = torch.frombuffer(bytearray(sent[0]), dtype=torch.float32)
        assert (first - without_noise).std().item() == pytest.approx(lab.terms.trust_model.share_std(lab.plan), rel=0.15)


def test_a_site_needs_its_own_copy_of_the_towers(agreed, aligned_start, tmp_path):
    terms = Lab(agreed, tmp_path).terms
    with pytest.raises(UserError, match="starting weights .*site-copy"):
        require_copies(terms, SiteSettings(name="north", store="x"))
    assert "model.start" in require_copies(terms, SiteSettings(name="north", store="x", start=str(aligned_start)))


def test_the_terms_count_each_record_once(agreed, tmp_path):
    lab = Lab(agreed, tmp_path)
    assert lab.plan.sampling.batch == lab.plan.sampling.records == lab.plan.divisor == 600
    assert sum(site.groups for site in lab.terms.sites) == lab.plan.groups == 600
