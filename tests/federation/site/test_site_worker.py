"""What a site refuses: it answers the coordinator of its terms, once a step, within its budget, and nobody else."""

import json

import pytest
import torch

from dpfed import __version__
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Release
from dpfed.protocol.answers import Reason
from dpfed.protocol.identity import Identity
from dpfed.protocol.messages import PROTOCOL, Packet, digest_of, sign
from dpfed.protocol.vectors import encoded
from tests.federation.lab import SITES, Lab


@pytest.fixture
def lab(tiny, tmp_path):
    tiny["privacy"] |= {"epsilon": None, "noise_multiplier": 1.0, "accountant": "rdp"}
    return Lab(tiny, tmp_path, trust="central")


def question(lab: Lab, step: int = 0, identity=None, terms=None, kind="step", values=None, **fields) -> Packet:
    values = TrainableVector(lab.parts.model).gather() if values is None else values
    content = values if isinstance(values, bytes) else encoded(values)
    return sign(identity or lab.coordinator, terms or lab.terms.fingerprint, kind, content, step=step, **fields)


def said(reply: Packet) -> dict:
    return json.loads(reply.header)


def test_a_step_is_answered_once_and_paid_for_before(lab):
    site = lab.wire.workers["node0"]
    assert (said(site.answer(question(lab)))["kind"], lab.ledger(0).charged) == ("sum", 1)
    again = site.answer(question(lab))
    assert (said(again)["kind"], len(again.vector), lab.ledger(0).charged) == ("refusal", 0, 1)
    assert said(lab.site(0).answer(question(lab)))["kind"] == "refusal"  # also after a restart


def test_the_answer_waits_for_the_ledger(lab, monkeypatch):
    site = lab.wire.workers["node0"]
    monkeypatch.setattr(type(site._ledger), "charge", lambda *_: (_ for _ in ()).throw(OSError("disk full at /secret/place")))
    reply = site.answer(question(lab))
    assert said(reply)["kind"] == "refusal" and not reply.vector
    assert b"secret" not in reply.header and any("secret" in line for line in lab.logs)


def test_a_step_is_on_the_books_before_a_record_is_drawn(lab, monkeypatch):
    """A sum that fails tells something of the records that it needed."""
    site = lab.wire.workers["node0"]

    def bounded_sum(step):
        assert (lab.ledger(0).charged, lab.ledger(0).last_step) == (1, 2)
        raise UserError("a record cannot be read")

    monkeypatch.setattr(site._worker, "bounded_sum", bounded_sum)
    reply = site.answer(question(lab, step=2))
    fixed = {"kind": "refusal", "terms": lab.terms.fingerprint, "vector": digest_of(b""), "site": 0}
    fixed |= {"protocol": PROTOCOL, "release": __version__}
    assert said(reply) == fixed | {"reason": Reason.FAILED, "about": None} and not reply.vector  # and nothing else
    assert lab.ledger(0).charged == 1 and lab.logs[0] == "error: a record cannot be read"
    assert said(site.answer(question(lab, step=2)))["reason"] == Reason.OVER


@pytest.mark.parametrize(
    "make",
    [
        lambda lab: question(lab, identity=Identity(b"o" * 32)),  # an outsider
        lambda lab: question(lab, identity=lab.identities[1]),  # another site
        lambda lab: question(lab, terms="0" * 32),
        lambda lab: question(lab, values=torch.zeros(7)),
        lambda lab: question(lab, values=b"123"),
        lambda lab: question(lab, values=torch.full((TrainableVector(lab.parts.model).numel,), float("nan"))),
        lambda lab: question(lab, step=6),  # beyond the plan
        lambda lab: question(lab, step=-1),
        lambda lab: question(lab, step="zero"),
        lambda lab: question(lab, kind="records"),
        lambda lab: question(lab, kind="reveal", arrived=[0, 1]),  # of a mode that is not this one's
        lambda lab: Packet(b"", b"", b""),
        lambda lab: Packet(b"[1]", b"x" * 64, b""),
        lambda lab: Packet(question(lab).header, question(lab).signature, b"changed"),
    ],
)
def test_what_is_not_agreed_is_refused_and_costs_nothing(lab, make):
    site = lab.wire.workers["node0"]
    reply = site.answer(make(lab))
    assert said(reply)["kind"] == "refusal" and not reply.vector
    assert lab.ledger(0).charged == 0
    assert said(site.answer(question(lab)))["kind"] == "sum"  # and it goes on


def test_old_steps_are_over(lab):
    site = lab.wire.workers["node0"]
    assert said(site.answer(question(lab, step=3)))["kind"] == "sum"
    for step in (3, 2, 0):
        assert said(site.answer(question(lab, step=step)))["reason"] == Reason.OVER
        assert said(lab.site(0).answer(question(lab, step=step)))["reason"] == Reason.OVER  # also after a restart
    assert lab.ledger(0).charged == 1


def test_a_site_has_a_veto(tiny, tmp_path):
    tiny["privacy"] |= {"epsilon": 8.0, "accountant": "rdp"}
    lab = Lab(tiny, tmp_path, trust="central")
    ledger = lab.wire.workers["node0"]._ledger
    for spent in range(100, 100 + lab.plan.steps):
        ledger.charge(Release(spent, "x"))
    site = lab.wire.workers["node0"]
    site._last = -1
    assert said(site.answer(question(lab)))["reason"] == Reason.BUDGET


def test_a_refusal_is_a_fixed_phrase(lab):
    """Nothing that a question holds, and nothing that an exception says, comes back."""
    for fields in ({"step": "/etc/passwd"}, {"step": None}, {"step": [1]}, {"step": 1e400}):
        assert "passwd" not in json.dumps(said(lab.wire.workers["node0"].answer(question(lab, **fields))))


@pytest.mark.parametrize("numbers", [[0, 1], [0, 1, 2]])
def test_a_secure_site_reveals_shares_of_one_set_only(tiny, tmp_path, numbers):
    tiny["privacy"] |= {"epsilon": None, "noise_multiplier": 1.0, "accountant": "rdp"}
    lab = Lab(tiny, tmp_path, trust="secure", drops=1)
    assert lab.server.aggregate(0) is not None  # with all three
    site = lab.wire.workers["node0"]
    (asked,) = {packet.header for _, packet in lab.wire.questions if json.loads(packet.header)["kind"] == "reveal"}
    fields = {name: value for name, value in json.loads(asked).items() if name in ("rosters", "voters", "votes")}
    reply = said(site.answer(sign(lab.coordinator, lab.terms.fingerprint, "reveal", step=0, arrived=numbers, **fields)))
    assert reply["kind"] == ("shares" if len(numbers) == SITES else "refusal")
