"""What travels between the parties of a federation, and what they write, is a function of the noisy numbers, in every mode."""

import json
import math

import pytest
import torch

from dpfed.federation.coordinator import members
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.trust import Trust
from dpfed.protocol.vectors import decoded
from tests.federation.lab import SITES, Lab
from tests.training.twins import Noise, files, stores

STEPS = 2
MODES = {"central": {}, "distributed": {"drops": 1, "colluders": 0}, "secure": {"drops": 1, "colluders": 0}, "local": {}}
ALWAYS = {"kind", "terms", "vector", "site", "protocol", "release"}
HEADERS = {  # all that a site ever says
    "hello": ALWAYS | {"nonce", "frozen", "last", "session", "offer"},
    "sum": ALWAYS | {"step", "offer", "roster"},
    "vote": ALWAYS | {"step", "vote"},
    "shares": ALWAYS | {"step", "shares"},
}


def taken(lab, folder):
    """Two steps of a federation; the parameters after them."""
    coordinator = lab.parts.learner.coordinator(Randomness.from_seed(9), Ledger.create(folder / "coordinator.jsonl", lab.plan))
    for step in range(STEPS):
        coordinator.apply(step, lab.server.aggregate(step))
    return torch.cat([parameter.detach().flatten() for parameter in lab.parts.model.parameters()])


@pytest.mark.long
@pytest.mark.parametrize("trust", MODES)
def test_all_that_leaves_a_party_follows_from_noisy_sums(trust, tiny, shapes, tmp_path, monkeypatch):
    tiny["privacy"] = {"noise_multiplier": 1.3, "accountant": "rdp", "batch": 60, "steps": STEPS}
    noise, seen, sums = Noise(monkeypatch), [], []
    for number, store in enumerate(stores(shapes, tmp_path / "records")):
        tiny["data"]["path"] = str(store.path)
        (folder := tmp_path / str(number)).mkdir()
        nonces = iter(range(1000))
        monkeypatch.setattr(members.secrets, "token_hex", lambda _, nonces=nonces: f"{next(nonces):032x}")
        lab = Lab(tiny, folder, trust=trust, **MODES[trust])
        sums.append(lab.clean(0).values)
        seen.append((lab, taken(lab, folder), files(folder), lab.notes))
        if number == 0:
            calls = noise.repeat()
    (lab, *first), (other, *second) = seen
    assert not torch.equal(*sums)
    # The noise: every party's, in every step, on every number, of the planned deviation to the last digit.
    plan, kind = lab.plan, Trust(trust, SITES, **MODES[trust])
    std = 1.3 * 2 * plan.bounding.clip_norm
    expected = {
        "central": [("noise", step, 0, std) for step in range(STEPS)],
        "local": [("share", step, site, std) for step in range(STEPS) for site in range(SITES)],
    }
    share = [("share", step, site, std / math.sqrt(SITES - 1)) for step in range(STEPS) for site in range(SITES)]
    unit = plan.grid_of().unit
    added = [(call.purpose, call.step, call.rank, pytest.approx(call.scale * unit, rel=1e-12)) for call in calls]
    assert sorted(expected.get(trust, share)) == sorted(added, key=lambda each: each[:3])
    assert {call.noisy.numel() for call in calls} == {first[0].numel()}
    assert kind.carried_std(plan, SITES) in (0.0, pytest.approx(std * math.sqrt({"local": 3}.get(trust, 1.5)), rel=1e-12))
    # Parameters, journal, ledgers and notes are the same; what sites get is the same but for random keys.
    assert torch.equal(first[0], second[0]) and first[2] == second[2]
    random = {f"site-{site}.jsonl" for site in range(SITES)} if trust == "secure" else set()  # their digests are of messages
    assert first[1].keys() == second[1].keys()
    assert [path for path in first[1] if first[1][path] != second[1][path] and path not in random] == []
    questions = [[bytes(packet.vector) for _, packet in one.wire.questions] for one in (lab, other)]
    assert questions[0] == questions[1]
    assert {json.loads(packet.header)["kind"] for _, packet in lab.wire.questions} <= {"hello", "step", "reveal"}
    # What a site says has these fields and no others, and is the same, where its sum carries noise of its own.
    for _, reply in lab.wire.replies:
        header = json.loads(reply.header)
        assert header.keys() <= HEADERS[header["kind"]]
    if trust in ("distributed", "local"):
        assert lab.wire.everything() == other.wire.everything()
        for step in range(STEPS):
            for call in (call for call in calls if call.step == step):
                sent = [
                    decoded(reply.vector)
                    for _, reply in lab.wire.replies
                    if (header := json.loads(reply.header))["kind"] == "sum"
                    and (header["site"], header["step"]) == (call.rank, step)
                ]
                assert len(sent) == 1 and torch.equal(sent[0], (unit * call.noisy.double()).float())
