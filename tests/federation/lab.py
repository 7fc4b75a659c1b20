"""Three sites and a coordinator in one process, with a wire that a test can tamper with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.config import parse_config
from dpfed.data.store.records import RecordStore
from dpfed.federation.coordinator.rounds import Federation
from dpfed.federation.site.worker import SiteWorker
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.identity import Identity
from dpfed.protocol.journal import Journal
from dpfed.protocol.messages import Packet
from dpfed.protocol.terms import Terms
from dpfed.runs.build import build
from dpfed.training.learner import Partition

SITES = 3
Tamper = Callable[[Packet, Packet], Packet | None]


def identity_of(number: int) -> Identity:
    """The keys of a site; the coordinator's have the number after the last."""
    return Identity(bytes([100 + number]) * 32)


class Wire:
    """A channel to sites in this process that keeps every packet, and on which a test may do anything to a reply."""

    def __init__(self, sites: dict[str, SiteWorker]) -> None:
        self.workers, self.tampers, self.gone = sites, dict[str, Tamper](), set[str]()
        self.most: list[int] = []  # bytes that replies may have, by exchange
        self.questions: list[tuple[str, Packet]] = []
        self.replies: list[tuple[str, Packet]] = []

    def sites(self) -> list[str]:
        return [address for address in self.workers if address not in self.gone]

    def exchange(self, packets, seconds, most):
        self.most.append(most)
        for address, packet in packets.items():
            self.questions.append((address, packet))
            if address in self.gone:
                yield address, None
                continue
            reply = self.workers[address].answer(packet)
            self.replies.append((address, reply))
            tamper = self.tampers.get(address)
            yield address, tamper(packet, reply) if tamper else reply

    def everything(self) -> bytes:
        """All bytes that ever travelled."""
        return b"\n".join(bytes(part.header) + bytes(part.vector) for _, part in self.questions + self.replies)


class Lab:
    """A federation whose parties share this process.

    Args:
        tree: configuration.
        folder: for ledgers and journal.
        options: of `Terms.agree`.
    """

    def __init__(self, tree: dict, folder: Path, **options) -> None:
        config = parse_config(tree)
        self.folder, self.notes, self.logs = folder, list[str](), list[str]()
        self.identities = [identity_of(number) for number in range(SITES + 1)]
        self.coordinator = self.identities[-1]
        indices = RecordStore.open(Path(tree["data"]["path"])).split("train")
        self.indices = [indices[:100], indices[100:280], indices[280:]]
        cards = [
            SiteCard(name=f"site-{n}", records=len(rows), signing_key=key.signing_key, exchange_key=key.exchange_key)
            for n, (rows, key) in enumerate(zip(self.indices, self.identities, strict=False))
        ]
        options = {"deadline": 5.0} | options
        self.terms = Terms.agree(config, cards, self.coordinator.signing_key, **options)
        self.parts = build(config, Randomness.from_seed(5), terms=self.terms)
        self.plan = self.terms.privacy_plan
        self.wire = Wire({f"node{number}": self.site(number) for number in range(SITES)})
        self.server = self.restarted()

    def worker(self, number: int):
        """A worker with a site's records and its own copy of the model, and that copy."""
        model = copy.deepcopy(self.parts.model)
        partition = Partition(number, self.indices[number], self.terms.sites[number].groups)
        return self.parts.learner.worker(Randomness.from_seed(5).for_ranks(), model=model, partition=partition), model

    def site(self, number: int, terms: Terms | None = None) -> SiteWorker:
        """A site that was just started."""
        worker, model = self.worker(number)
        path = self.folder / f"site-{number}.jsonl"
        ledger = Ledger.open(path) if path.exists() else Ledger.create(path, self.plan)
        randomness = Randomness.from_seed(100 + number)
        return SiteWorker(terms or self.terms, self.identities[number], worker, model, ledger, randomness, self.logs.append)

    def restarted(self) -> Federation:
        """A server that was just started."""
        path = self.folder / "run.jsonl"
        self.journal = Journal(self.folder / "federation.jsonl")
        self.paid = Ledger.open(path) if path.exists() else Ledger.create(path, self.plan)
        return self.federation()

    def federation(self, **options) -> Federation:
        """A server with the journal and the ledger of the last one, and further options."""
        parts = (self.terms, self.coordinator, self.wire, self.parts.model, self.journal, self.paid, self.notes.append)
        return Federation(*parts, **options)

    def ledger(self, number: int) -> Ledger:
        """A site's ledger, as it is on disk."""
        return Ledger.open(self.folder / f"site-{number}.jsonl")

    def events(self) -> list[dict]:
        """The journal on disk."""
        return Journal(self.folder / "federation.jsonl").lines

    def clean(self, step: int, sites=range(SITES)) -> BoundedSum:
        """What the sites' sums without any noise add up to, exactly, computed without the protocol."""
        first, *others = (self.worker(number)[0].bounded_sum(step) for number in sites)
        return sum(others, first)
