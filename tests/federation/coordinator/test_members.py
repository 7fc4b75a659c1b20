"""Who takes part: two SuperNodes at one site, sites that hang, vanish, restart or change their release, what is said."""

import json

import pytest

from dpfed.federation.coordinator.members import Backoff
from dpfed.protocol import messages
from dpfed.protocol.messages import PROTOCOL, sign
from tests.federation.lab import Lab, identity_of


@pytest.fixture
def lab(tiny, tmp_path):
    def make(trust: str = "central", **options) -> Lab:
        tiny["privacy"] |= {"epsilon": None, "noise_multiplier": 1.0, "accountant": "rdp", "steps": options.pop("steps", 8)}
        folder = tmp_path / f"{trust}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return Lab(tiny, folder, trust=trust, **({"drops": 1, "colluders": 0} | options))

    return make


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def hanging(one: Lab, address: str, kind: str = "step") -> None:
    """From now on an address takes questions of a kind, and never answers."""
    exchange = one.wire.exchange

    def silent(packets, seconds, most):
        heard = {at: packet for at, packet in packets.items() if at != address or json.loads(packet.header)["kind"] != kind}
        yield from exchange(heard, seconds, most)

    one.wire.exchange = silent


def patient(one: Lab, clock: Clock) -> None:
    """A server whose patience follows the test's clock."""
    one.server = one.federation(backoff=Backoff(clock))


def events(one: Lab) -> list[str]:
    return [line["event"] for line in one.events() if line["event"] != "opened"]


# ---- two SuperNodes on one worker, as the rotation of keys makes them


@pytest.mark.parametrize("trust", ["central", "secure"])
@pytest.mark.parametrize("drops", [0, 1])
def test_two_supernodes_on_one_worker_waste_no_step(lab, trust, drops):
    one = lab(trust, drops=drops, colluders=1)
    one.wire.workers["another"] = one.wire.workers["node0"]
    for step in range(4):
        assert one.server.aggregate(step) is not None, one.events()[-1]
        assert one.events()[-1]["arrived"] == ["site-0", "site-1", "site-2"]
    assert [one.ledger(number).charged for number in range(3)] == [4, 4, 4]


def test_a_site_whose_supernode_went_is_waited_for_unpaid(lab):
    one = lab("secure", drops=0, colluders=1)
    one.server.aggregate(0)
    one.wire.gone, tries = {"node1"}, []
    exchange = one.wire.exchange

    def comes_back(packets, seconds, most):
        tries.append(set(packets))
        one.wire.gone = set() if len(tries) > 2 else one.wire.gone
        yield from exchange(packets, seconds, most)

    one.wire.exchange = comes_back
    assert one.server.aggregate(1) is not None
    assert events(one) == ["collected"] * 2 and [one.ledger(number).charged for number in range(3)] == [2, 2, 2]


# ---- checked before it is paid for


@pytest.mark.long
def test_a_site_pays_for_no_step_that_it_cannot_mask(lab):
    """It was started again behind its SuperNode: its secrets are gone, and it says so before it charges anything."""
    one = lab("secure", drops=1, colluders=0)
    one.server.aggregate(0)
    one.wire.workers["node0"] = one.site(0)
    assert one.server.aggregate(1) is not None
    assert one.events()[-1]["missing"] == {
        "site-0": "it refused: the site holds no offer of its own for this step: it was started again"
    }
    assert [one.ledger(number).charged for number in range(3)] == [1, 2, 2]
    one.server.aggregate(2)  # it is greeted along with this step
    one.server.aggregate(3)
    assert one.events()[-1]["arrived"] == ["site-0", "site-1", "site-2"]


@pytest.mark.parametrize("harm", ["offers", "roster", "none"])
def test_a_step_that_cannot_be_masked_costs_a_site_nothing(lab, harm):
    one = lab("secure", drops=0, colluders=1)
    one.server.wait_for_sites(0)
    caught = []
    one.wire.exchange = lambda packets, seconds, most: caught.append(packets) or iter(())
    one.server.aggregate(0)
    question = caught[0]["node0"]
    fields = json.loads(question.header)
    fields.pop("vector")
    changes = {
        "offers": {"offers": fields["offers"][::-1]},
        "roster": {"roster": [0, 1], "offers": fields["offers"][: len(fields["offers"]) // 2]},
        "none": {},
    }
    fields |= changes[harm]
    reply = one.wire.workers["node0"].answer(
        sign(one.coordinator, fields.pop("terms"), fields.pop("kind"), question.vector, **fields)
    )
    assert json.loads(reply.header)["kind"] == ("sum" if harm == "none" else "refusal")
    assert one.ledger(0).charged == (harm == "none")


# ---- sites that hang


@pytest.mark.long
def test_a_hanging_site_costs_one_deadline_and_comes_back(lab):
    one, clock = lab("secure", drops=1, deadline=5.0), Clock()
    patient(one, clock)
    one.server.aggregate(0)
    plain = one.wire.exchange
    hanging(one, "node0")
    asked = [one.server.aggregate(step) is not None for step in (1, 2, 3)]
    assert asked == [True] * 3 and one.events()[-1]["missing"] == {"site-0": "not there: it did not answer step 1 within 5 s"}
    assert [line["missing"].get("site-0") for line in one.events() if line["event"] == "collected"] == [
        None,
        "no answer before the deadline",
        "not there: it did not answer step 1 within 5 s",
        "not there: it did not answer step 1 within 5 s",
    ]
    assert "site-0 did not answer step 1 within 5 s: it is asked again in 5 s" in one.notes
    clock.now, one.wire.exchange = 6.0, plain
    one.server.aggregate(4)  # it is greeted along with this step
    one.server.aggregate(5)
    assert one.events()[-1]["arrived"] == ["site-0", "site-1", "site-2"]


def test_a_site_that_has_left_is_said_to_have_left(lab):
    one, left = lab("distributed", drops=1, deadline=5.0), []
    one.server = one.federation(left=lambda: left)
    one.server.aggregate(0)
    gone = one.wire.workers.pop("node0")
    for step in (1, 2):
        one.server.aggregate(step)
        left.append("site-0")
    assert [line["missing"] for line in one.events() if line["event"] == "collected"] == [
        {},
        {"site-0": "not there: its SuperNode is no longer connected"},
        {"site-0": "it has left the federation"},
    ]
    assert gone is not None


def test_patience_doubles_ends_and_is_forgotten():
    clock = Clock()
    backoff = Backoff(clock)
    for left in (120, 240, 480, 600, 600):
        backoff.hung(3, 120.0)
        assert backoff.left(3) == left
    assert backoff.left(1) == 0
    clock.now = 500.0
    assert backoff.left(3) == 100
    backoff.answered(3)
    assert backoff.left(3) == 0
    for _ in range(5000):
        backoff.hung(4, 1e300)
    assert backoff.left(4) == 600


@pytest.mark.long
def test_a_needed_site_that_hangs_costs_no_step_again_and_again(lab, monkeypatch):
    """The run waits with growing pauses, instead of discarding step after step."""
    one, clock = lab("secure", drops=0, colluders=1, deadline=5.0, steps=50), Clock()
    patient(one, clock)
    monkeypatch.setattr("dpfed.federation.coordinator.rounds.time.sleep", clock.sleep)
    one.server.aggregate(0)
    hanging(one, "node0")
    for step in range(1, 6):
        assert one.server.aggregate(step) is None
    assert clock.now >= 5 * (1 + 2 + 4 + 8)


# ---- versions


def speaking(change):
    """A site whose messages name another version."""

    def tamper(question, reply):
        fields = json.loads(reply.header) | change
        fields = {name: value for name, value in fields.items() if value is not None and name != "vector"}
        return sign(identity_of(0), fields.pop("terms"), fields.pop("kind"), reply.vector, **fields)

    return tamper


@pytest.mark.parametrize("protocol", [PROTOCOL + 1, 1])
def test_a_site_of_another_protocol_is_left_out_and_named_once(lab, protocol):
    one = lab("central", deadline=0.3)
    one.wire.tampers["node0"] = speaking({"protocol": protocol, "release": "9.9"})
    one.server.aggregate(0)
    one.server.aggregate(1)
    assert one.events()[-1]["arrived"] == ["site-1", "site-2"]
    told = [note for note in one.notes if "is rejected" in note]
    assert len(told) == 1 and "same release on both" in told[0]
    assert told[0].startswith(f"site-0 is rejected: it speaks protocol {protocol}, and this dpfed speaks protocol {PROTOCOL}")


def test_a_coordinator_of_another_protocol_is_refused_unpaid(lab, monkeypatch):
    one = lab("central")
    monkeypatch.setattr(messages, "PROTOCOL", PROTOCOL + 1)
    packet = sign(one.coordinator, one.terms.fingerprint, "hello", nonce="n", step=0)
    monkeypatch.undo()
    reply = json.loads(one.wire.workers["node0"].answer(packet).header)
    assert (reply["kind"], reply["reason"]) == ("refusal", "the site's dpfed speaks another version of the protocol")
    versions = f"protocol {PROTOCOL + 1}, and this dpfed speaks protocol {PROTOCOL}"
    assert one.logs[0] == f"the coordinator's dpfed speaks {versions}: install the same release on both sides"


# ---- how long a reply may be


def test_every_question_limits_its_replies(lab):
    one = lab("secure")
    one.server.aggregate(0)
    numbers = one.clean(0).values.numel()
    assert set(one.wire.most) == {messages.LONGEST_HEADER, messages.LONGEST_HEADER + 4 * numbers}
    assert (
        max(len(r.header) + len(r.signature) + len(r.vector) for _, r in one.wire.replies)
        < messages.LONGEST_HEADER + 4 * numbers
    )


# ---- agreement between sites


def test_sites_confirm_who_arrived_only_when_somebody_did_not(lab):
    one = lab("secure", drops=1, colluders=0)
    one.server.aggregate(0)
    kinds = [json.loads(packet.header)["kind"] for _, packet in one.wire.questions]
    assert "confirm" not in kinds and kinds.count("reveal") == 2  # as many as are needed
    one.wire.tampers["node0"] = lambda q, r: None if b'"kind": "sum"' in r.header else r
    assert one.server.aggregate(1) is not None
    kinds = [json.loads(packet.header)["kind"] for _, packet in one.wire.questions]
    assert kinds.count("confirm") == 2 and one.events()[-1]["arrived"] == ["site-1", "site-2"]


def test_a_site_that_signs_another_roster_counts_as_missing(lab):
    one = lab("secure", drops=1, colluders=0)

    def other(question, reply):
        fields = json.loads(reply.header)
        if fields["kind"] != "sum":
            return reply
        fields.pop("vector")
        fields["roster"] = fields["roster"][::-1].replace("=", "A")[:86] + "=="
        return sign(identity_of(0), fields.pop("terms"), fields.pop("kind"), reply.vector, **fields)

    one.wire.tampers["node0"] = other
    assert one.server.aggregate(0) is not None
    assert one.events()[-1]["missing"] == {"site-0": "it has not signed this step's roster"}
