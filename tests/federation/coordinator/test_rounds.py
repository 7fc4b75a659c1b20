"""One step of a federation: what arrives, how much noise it carries, and what the ledgers say, whatever a site does."""

import dataclasses
import functools
import json
import math
from base64 import b64decode, b64encode

import pytest
import torch

from dpfed.callbacks import Callback
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.noise import digest_of
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.identity import Identity
from dpfed.protocol.messages import Packet, sign
from dpfed.protocol.vectors import decoded, encoded, grid_of
from dpfed.training.coordinator import DISCARDED
from dpfed.training.loop import train
from dpfed.training.releases import Releases
from dpfed.training.transport import InProcess
from dpfed.training.worker import Worker
from tests.federation.lab import SITES, Lab, identity_of

MODES = ["central", "distributed", "secure", "local"]


@pytest.fixture
def lab(tiny, tmp_path):
    def make(trust: str = "central", **options) -> Lab:
        tiny["privacy"] |= {"epsilon": None, "noise_multiplier": 1.0, "accountant": "rdp"}
        tiny["privacy"]["steps"] = options.pop("steps", 6)
        options = {"drops": 1, "colluders": 0} | options
        folder = tmp_path / f"{trust}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return Lab(tiny, folder, trust=trust, **options)

    return make


def noise_in(lab: Lab, step: int, total, sites=range(SITES)) -> torch.Tensor:
    """The noise of a released sum: what the owners added, and what the coordinator adds to it."""
    clean = lab.clean(step, sites)
    ledger, releases = Ledger.create(lab.folder / f"coordinator-{step}.jsonl", lab.plan), Releases(lab.folder / f"kept-{step}")
    coordinator, before = lab.parts.learner.coordinator(Randomness.from_seed(9), ledger, releases), lab.parts.model.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    coordinator.apply(step, total)
    lab.parts.model.load_state_dict(before)
    return releases.load(step, coordinator.blocks).double() - clean.numbers()


def spread(noise: torch.Tensor, plan) -> float:
    """Measured variance over the plan's."""
    return (noise.square().mean() / plan.noise_std**2).item()


def test_without_noise_a_federation_adds_up_its_sites_sums(lab):
    one = lab("central")
    total = one.server.aggregate(0)
    clean = one.clean(0)
    assert torch.equal(total.values, clean.values) and total.unit == clean.unit
    assert (total.groups, total.sensitivity, total.noise_std) == (one.plan.groups, one.plan.sensitivity, 0.0)


@pytest.mark.long
def test_the_same_update_as_three_owners_in_one_process(lab, tmp_path):
    """The whole training, parameters and all, bit for bit."""
    one = lab("central")

    def trained(parts, transport, name):
        ledger = Ledger.create(tmp_path / f"{name}.jsonl", one.plan)
        train(transport, parts.learner.coordinator(Randomness.from_seed(3), ledger), range(one.plan.steps))
        return torch.cat([p.detach().flatten() for p in parts.model.parameters()])

    before = torch.cat([p.detach().flatten() for p in one.parts.model.parameters()])
    workers = [one.worker(number) for number in range(SITES)]
    shared_parts = one.parts.with_learner(model=workers[0][1])

    class Shared(InProcess):
        def aggregate(self, step):
            for _, model in workers:
                model.load_state_dict(shared_parts.model.state_dict())
            return super().aggregate(step)

    expected = trained(shared_parts, Shared([worker for worker, _ in workers]), "in-process")
    assert torch.equal(trained(one.parts, one.server, "federation"), expected)
    assert not torch.equal(expected, before)


@pytest.mark.parametrize("trust", MODES)
@pytest.mark.parametrize("drops", [0, 1])
def test_the_noise_is_never_below_the_plan(lab, trust, drops):
    one = lab(trust)
    one.server.wait_for_sites(0)
    one.wire.gone = set(list(one.wire.workers)[:drops])
    there = range(drops, SITES)
    total = one.server.aggregate(0)
    stated = total.noise_std
    noise = noise_in(one, 0, total, there)
    least = {"central": 1, "local": SITES - drops}.get(trust, (SITES - drops) / (SITES - 1))
    tolerance = 6 * math.sqrt(2 / noise.numel())
    assert spread(noise, one.plan) == pytest.approx(least, rel=tolerance)
    assert least >= 1
    # What the sum is said to carry is what it carries: the coordinator adds nothing to it for that reason.
    assert (stated / one.plan.noise_std) ** 2 == pytest.approx(0 if trust == "central" else least, rel=1e-9)
    assert abs(noise.mean().item()) < 6 * math.sqrt(least / noise.numel()) * one.plan.noise_std


def test_no_two_sites_and_no_two_steps_share_noise(lab):
    one = lab("local")
    noises = []
    for step in range(2):
        one.server.aggregate(step)
    for (_, reply), (number, step) in zip(
        [(a, r) for a, r in one.wire.replies if b'"kind": "sum"' in r.header],
        [(n, s) for s in range(2) for n in range(SITES)],
        strict=True,
    ):
        worker, _ = one.worker(number)
        noises.append((decoded(reply.vector) - worker.bounded_sum(step).numbers()) / one.plan.noise_std)
    correlation = torch.corrcoef(torch.stack(noises))
    assert (correlation - torch.eye(len(noises))).abs().max() < 6 / math.sqrt(noises[0].numel())


def another_identity(question: Packet, reply: Packet, **changes) -> Packet:
    fields = json.loads(reply.header) | changes
    fields.pop("vector")
    return sign(Identity(b"z" * 32), fields.pop("terms"), fields.pop("kind"), reply.vector, **fields)


def resealed(vector, form: str = "fp32") -> object:
    """The site itself sends something else, properly signed: what `vector` makes of its sum, which came in a form."""

    def tamper(question, reply):
        fields = json.loads(reply.header)
        if fields["kind"] != "sum":
            return reply
        fields.pop("vector")
        values = vector(decoded(reply.vector, form))
        content = values if isinstance(values, bytes) else encoded(values)
        return sign(identity_of(0), fields.pop("terms"), fields.pop("kind"), content, **fields)

    return tamper


def on_sums(change):
    return lambda question, reply: change(question, reply) if b'"kind": "sum"' in reply.header else reply


FAULTS = {
    "says nothing": on_sums(lambda question, reply: None),
    "garbage": on_sums(lambda question, reply: Packet(b"\xff{", b"", b"")),
    "not json": on_sums(lambda question, reply: Packet(b"[]", b"0" * 64, b"")),
    "another key": on_sums(another_identity),
    "vector changed on its way": on_sums(lambda q, r: dataclasses.replace(r, vector=bytes(len(r.vector)))),
    "another shape": resealed(lambda values: values[:-1]),
    "half a number": resealed(lambda values: encoded(values)[:-2]),
}
OPEN_FAULTS = {  # a masked sum shows none of these
    "not a number": resealed(lambda values: values.fill_(float("nan"))),
    "infinite": resealed(lambda values: values.fill_(float("inf"))),
    "too large": resealed(lambda values: values * 1e4),
}
EXACT_FAULTS = {  # of whole numbers without noise
    "too large": resealed(lambda values: values * 10_000, "int64"),
    "so large that a total would wrap": resealed(lambda values: values.fill_(2**63 - 1), "int64"),
    "numbers of another form": resealed(lambda values: values.float(), "int64"),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "trust", [pytest.param(mode, marks=[pytest.mark.slow] * (mode in ("local", "distributed"))) for mode in MODES]
)
def test_a_bad_answer_costs_its_site_only(lab, trust):
    faults = FAULTS | {"secure": {}, "central": EXACT_FAULTS}.get(trust, OPEN_FAULTS)
    one = lab(trust, steps=3 * len(faults))
    for step, fault in zip(range(0, 3 * len(faults), 3), faults, strict=True):
        one.wire.tampers["node0"] = faults[fault]
        noise = noise_in(one, step, one.server.aggregate(step), (1, 2))
        assert spread(noise, one.plan) > 1 - 6 * math.sqrt(2 / noise.numel()), fault
        event = one.events()[-1]
        assert (event["event"], event["arrived"]) == ("collected", ["site-1", "site-2"]), fault
        assert event["missing"].keys() == {"site-0"}
        assert all(one.ledger(number).release_of(step) for number in range(SITES))  # it has drawn its records: it has paid
        one.wire.tampers.clear()
        assert one.server.aggregate(step + 1) is not None
        assert one.server.aggregate(step + 2) is not None
        assert one.events()[-1]["arrived"] == ["site-0", "site-1", "site-2"], fault  # greeted again, and back


@pytest.mark.parametrize("trust", ["distributed", "secure"])
def test_a_step_with_too_few_sites_is_discarded_and_paid_for(lab, trust, tmp_path):
    one = lab(trust)
    one.wire.tampers = {"node0": FAULTS["says nothing"], "node1": FAULTS["garbage"]}
    ledger = Ledger.create(tmp_path / "ledger.jsonl", one.plan)
    before = [p.detach().clone() for p in one.parts.model.parameters()]
    summaries, keeping = [], Callback()
    keeping.on_step = summaries.append
    train(one.server, one.parts.learner.coordinator(Randomness.from_seed(9), ledger), range(1), [keeping])
    assert (ledger.charged, ledger.release_of(0).digest) == (1, DISCARDED)
    assert summaries[0].noisy_gradient_norm is None
    assert all(torch.equal(a, b) for a, b in zip(before, one.parts.model.parameters(), strict=True))
    assert one.events()[-1]["event"] == "discarded"
    assert [one.ledger(number).charged for number in range(SITES)] == [1, 1, 1]


@pytest.mark.parametrize("trust", ["central", "secure"])
def test_a_site_asked_twice_counts_once_and_pays_once(lab, trust):
    """A question that a SuperNode delivers again, and an answer that comes again before the others are there."""
    one, once = lab(trust), lab(trust)
    exchange = one.wire.exchange

    def twice(packets, seconds, most):
        for address, reply in exchange(packets, seconds, most):
            yield address, reply
            if b'"kind": "sum"' in reply.header:
                yield address, reply
                yield address, one.wire.workers[address].answer(packets[address])

    one.wire.exchange = twice
    for step in range(2):
        assert torch.equal(one.server.aggregate(step).values, once.server.aggregate(step).values)
        event = one.events()[-1]
        assert event["arrived"] == ["site-0", "site-1", "site-2"] and not event["missing"]
    assert [one.ledger(number).charged for number in range(SITES)] == [2, 2, 2]


def test_a_secure_step_survives_a_site_that_leaves_early(lab):
    one = lab("secure")
    one.wire.tampers["node2"] = lambda q, r: None if b'"kind": "shares"' in r.header else r
    noise = noise_in(one, 0, one.server.aggregate(0))
    assert spread(noise, one.plan) == pytest.approx(SITES / (SITES - 1), rel=6 * math.sqrt(2 / noise.numel()))


def test_secure_sums_are_the_sites_noisy_ones_to_the_last_step(lab):
    one = lab("secure")
    total, grid = one.server.aggregate(0), grid_of(one.terms)
    expected = torch.zeros(0, dtype=torch.float64)
    ring = 0
    for number in range(SITES):
        clean = one.clean(0, [number])
        context = f"{one.terms.fingerprint}/{digest_of(clean.values)}"
        std = one.terms.trust_model.share_std(one.plan) / clean.unit
        steps = Randomness.from_seed(100 + number).normal_steps(clean.values, std, "share", 0, number, context)
        values = steps.double() * clean.unit
        expected = values + (expected if number else 0)
        ring = ring + grid.encode(values.numpy())
    assert torch.equal(total.values, torch.from_numpy(grid.decode(ring)))
    assert (total.values.double() - expected).abs().max() <= (SITES / 2 + 1) * grid.spacing + 1e-6
    masked = [decoded(r.vector).view(torch.int32).double() for _, r in one.wire.replies if b'"kind": "sum"' in r.header]
    for vector in masked:  # uniform over the ring: nothing like a Gaussian of this width
        assert vector.std() / 2**32 == pytest.approx(12**-0.5, rel=0.05)


@pytest.mark.parametrize("trust", MODES)
def test_a_step_left_open_is_paid_for_and_never_asked_again(lab, trust, tmp_path):
    one = lab(trust)
    one.server.aggregate(0)  # the server is killed before it releases the sum
    asked = len(one.wire.questions)
    server = one.restarted()
    assert server.aggregate(0) is None
    assert len(one.wire.questions) == asked
    assert one.events()[-1]["event"] == "discarded"
    assert server.aggregate(1) is not None
    assert [one.ledger(number).charged for number in range(SITES)] == [2, 2, 2]


def test_a_step_is_on_the_books_before_anybody_is_asked(lab):
    """A server that is killed while the sites compute must not ask them again: they have paid, and somebody may have seen."""
    one = lab("central")
    one.server.wait_for_sites(0)
    exchange = one.wire.exchange

    def dies(packets, seconds, most):
        raise KeyboardInterrupt

    one.wire.exchange = dies
    with pytest.raises(KeyboardInterrupt):
        one.server.aggregate(0)
    assert [(event["event"], event["step"]) for event in one.events()] == [("opened", 0)]
    one.wire.exchange = exchange
    assert one.restarted().aggregate(0) is None


@pytest.mark.long
def test_no_message_holds_a_record(lab, shapes):
    for trust in MODES:
        one = lab(trust)
        for step in range(2):
            one.server.aggregate(step)
        sent = one.wire.everything()
        assert len(sent) > 10_000
        indices = shapes.split("train")
        words = {
            word for captions in shapes.captions(indices[:50]) for text in captions for word in text.split() if len(word) > 4
        }
        secrets = [word.encode() for word in words] + [str(shapes.path).encode(), str(one.folder).encode()]
        secrets += [
            shapes.images(indices[:1], 16).numpy().tobytes()[:64],
            *(bytes(key.tobytes()) for key in shapes.keys[indices[:50]]),
        ]
        secrets += [key._secret for key in one.identities] + [Randomness.from_seed(100 + n).master for n in range(SITES)]
        assert not [secret for secret in secrets if secret in sent]


def test_parameters_may_travel_rounded_and_sums_never(lab):
    one = lab("central", broadcast="bf16")
    vector = TrainableVector(one.parts.model)
    exact = vector.gather()
    total = one.server.aggregate(0)
    assert {len(packet.vector) for _, packet in one.wire.questions if packet.vector} == {2 * vector.numel}
    assert {len(r.vector) for _, r in one.wire.replies if r.vector} == {8 * vector.numel}
    assert torch.equal(vector.gather(), exact)  # the coordinator's own stay as they are
    assert not torch.equal(total.values, one.clean(0).values)
    vector.assign(exact.bfloat16().float())
    assert torch.equal(total.values, one.clean(0).values)


def test_somebody_elses_key_coordinates_nothing(lab):
    one = lab()
    with pytest.raises(UserError, match="coordinator-key"):
        server = one.server
        type(server)(one.terms, one.identities[0], one.wire, one.parts.model, one.journal, one.paid, print)


HOSTILE = [
    Packet(b"[" * 200_000, b"", b""),
    Packet(b"{" + b" " * (1 << 21) + b"}", b"", b""),
    {"kind": "hello", "site": 1e400},
    {"kind": "hello", "nonce": None},
    {"kind": "hello", "nonce": "x", "frozen": "y", "last": "z"},
    {"kind": "hello", "offer": [1]},
    {"kind": "sum", "step": "0"},
    {"kind": "sum"},
    {"kind": "sum", "step": 0, "release": "\x1b[31m"},
    {"kind": "sum", "step": 0, "roster": "AAAA"},
    {"kind": "sum", "step": 0, "protocol": 10**4000},
    {"kind": "sum", "step": 0, "protocol": "\x1b[31m", "release": "\x1b[31m"},
    {"kind": "sum", "step": 0, "offer": {"step": 1, "public": "!!", "envelopes": []}},
    {"kind": "sum", "step": 0, "offer": {"step": 1, "public": "AAAA", "envelopes": "x" * 9999}},
    {"kind": "vote", "step": 0, "vote": "AAAA"},
    {"kind": "shares", "step": 0, "shares": [1, 2]},
    {"kind": "shares", "step": 0, "shares": {"a": "b"}},
    {"kind": "shares", "step": 0, "shares": "AAA"},
    {"kind": "shares", "step": 0, "shares": "A" * 43 + "="},
    {"kind": "refusal"},
    {"kind": "refusal", "reason": "\ud800"},
    {"kind": "refusal", "reason": "\x1b[31m" + "x" * 100_000},
    {"kind": {"a": 1}},
    {},
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("trust", "to"),
    [
        pytest.param("central", "hello", marks=pytest.mark.slow),
        pytest.param("central", "sum", marks=pytest.mark.slow),
        ("secure", "sum"),
        pytest.param("secure", "shares", marks=pytest.mark.slow),
    ],
)
def test_nothing_that_a_site_says_stops_the_others(lab, trust, to, monkeypatch):
    one = lab(trust, steps=3 * len(HOSTILE), deadline=0.5)
    said, first = [], functools.cache(lambda worker, real=Worker.bounded_sum: real(worker, 0))
    same = lambda worker, _: dataclasses.replace(first(worker), values=first(worker).values.clone())  # noqa: E731
    monkeypatch.setattr(Worker, "bounded_sum", same)  # what sites say matters here, and not what they add up

    def hostile(question, reply):
        if json.loads(reply.header)["kind"] != to:
            return reply
        said.append(answer)
        if isinstance(answer, Packet):
            return answer
        fields = {"site": 0} | answer
        return sign(identity_of(0), one.terms.fingerprint, fields.pop("kind", "hello"), reply.vector, **fields)

    for number, answer in enumerate(HOSTILE):
        for step in range(3 * number, 3 * number + 3):  # in one of them it answers badly, and then it is greeted again
            one.wire.tampers["node0"] = hostile
            total = one.server.aggregate(step)
            assert total is not None and torch.isfinite(total.values).all(), answer
        one.server._members.lose(0, "node0", "the test wants it greeted again")
    assert all(answer in said for answer in HOSTILE)
    written = "\n".join([*map(json.dumps, one.events()), *one.notes])
    assert "\x1b" not in written and max(map(len, written.split("\n"))) < 1_000


def test_a_wrong_share_spoils_nothing_among_enough_right_ones(lab):
    one = lab("secure")

    def wrong(question, reply):
        fields = json.loads(reply.header)
        if fields["kind"] != "shares":
            return reply
        del fields["vector"]
        fields["shares"] = b64encode(bytes(len(b64decode(fields["shares"])))).decode()
        return sign(identity_of(0), fields.pop("terms"), fields.pop("kind"), b"", **fields)

    one.wire.tampers["node0"] = wrong
    assert one.server.aggregate(0) is not None


@pytest.mark.long
def test_a_run_that_its_sites_do_not_know_stops_before_it_spends(lab, tmp_path):
    for trust in MODES:
        one = lab(trust)
        for step in range(3):
            one.server.aggregate(step)
        (one.folder / "federation.jsonl").unlink()  # the run was begun anew, or an old copy was restored
        with pytest.raises(UserError, match="round-other-run"):
            one.restarted().aggregate(0)
        assert not one.events()


@pytest.mark.parametrize("trust", ["distributed", "secure"])
def test_too_few_able_sites_stop_the_run_before_it_spends(lab, trust):
    """One is ahead: with it gone, the steps would all come to nothing, and be paid for."""
    one = lab(trust, drops=0, colluders=1)
    Ledger.open(one.folder / "site-2.jsonl").charge(Release(4, "of another run"))
    one.wire.workers["node2"] = one.site(2)
    with pytest.raises(UserError, match="round-other-run"):
        one.server.aggregate(0)
    assert not one.events()


def test_a_released_step_whose_release_is_lost_is_not_discarded(lab):
    one = lab("central")
    one.server.aggregate(0)
    Ledger.open(one.folder / "run.jsonl").charge(Release(0, "digest"))
    with pytest.raises(UserError, match="round-released"):
        one.restarted().aggregate(0)
    assert one.events()[-1]["event"] == "collected"


def test_an_impossible_total_is_not_used(lab):
    """A masked sum shows nothing, but their total does."""
    one = lab("secure")
    one.wire.tampers["node0"] = resealed(lambda values: (values.view(torch.int32) ^ 0x55555555).view(torch.float32))
    assert one.server.aggregate(0) is None
    assert "larger than clipped groups" in one.events()[-1]["reason"]


def test_somebody_who_is_there_and_says_nothing_delays_nobody(lab):
    one = lab("central")
    one.server.aggregate(0)
    one.wire.workers["stranger"] = None
    asked = []
    exchange = one.wire.exchange

    def slow(packets, seconds, most):
        asked.append(set(packets))
        yield from exchange({address: packet for address, packet in packets.items() if address != "stranger"}, seconds, most)

    one.wire.exchange = slow
    assert one.server.aggregate(1) is not None
    assert len(asked) == 1  # it was greeted along with the step
