"""The coordinator's side of the protocol: a `Transport` whose workers are institutions.

A step: tell every site the parameters, take what comes before the deadline, check it, and add it up in the order of the terms.
Sites that are new, or missed a step, are greeted at the same time and take part from the next step on. What is missing counts
as zeros: divisor and noise do not depend on who came.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.errors import UserError
from dpfed.federation.coordinator.journal import Journal
from dpfed.federation.protocol.answers import Offer, Rejected, Shares, Sum, read
from dpfed.federation.protocol.identity import Identity
from dpfed.federation.protocol.members import Channel, Members
from dpfed.federation.protocol.messages import digest_of, sign
from dpfed.federation.protocol.packets import Content, Packet
from dpfed.federation.protocol.terms import Terms
from dpfed.federation.protocol.vectors import decoded, encoded, grid_of
from dpfed.federation.site.worker import frozen_digest
from dpfed.models.parameters import BroadcastVector, TrainableVector
from dpfed.privacy.ledger import Ledger

_GREETING = 60.0  # seconds that a greeting may take
_ROOM = 1e-3  # of a bound: sites add up in float32
_DEVIATIONS = 8  # a Gaussian's norm exceeds its square root of P by more once in 10^14


class Federation:
    """Collects a step's sums from the sites.

    Args:
        terms: of the federation.
        identity: the coordinator's.
        channel: reaches the sites.
        model: whose parameters the sites get.
        journal: of the run.
        paid: the run's ledger as it was when the run was taken up.
        note: told what the operator should see.
    """

    def __init__(
        self,
        terms: Terms,
        identity: Identity,
        channel: Channel,
        model: nn.Module,
        journal: Journal,
        paid: Ledger,
        note: Callable[[str], None],
    ) -> None:
        if identity.signing_key != terms.coordinator:
            raise UserError("this is not the coordinator's key that the terms name: use the folder in which they were made.")
        self._terms, self._identity, self._channel = terms, identity, channel
        self._journal, self._paid, self._note = journal, paid, note
        self._plan, self._trust = terms.privacy_plan, terms.trust_model
        self._vector, self._sent = TrainableVector(model), BroadcastVector(model)
        self._members = Members(terms, identity, frozen_digest(model), note)
        self._secure = terms.trust == "secure"
        self._numbers = self._vector.numel + self._plan.statistics_count  # of a sum
        self._threshold: dict[str, float] = {}  # what the steps ask about beside their gradients
        self._gathered = False  # whether all sites had their time to come
        self._addresses: dict[int, str] = {}  # of the sites that the current step asks
        self._roster: dict[int, Offer] = {}  # what they offered for it

    def collect(self, step: int) -> BoundedSum | None:
        """See `Transport`.

        Raises:
            UserError: if the sites have gone on without this run, or the step was released and its release is lost.
        """
        if self._paid.release_of(step) is not None:
            raise UserError(
                f"step {step} was released, and its release is not kept any more; the sites do not answer it again. Resume "
                "from the newest checkpoint."
            )
        if self._journal.opened(step):  # by a server that did not live to see its end
            self._journal.write("discarded", step, reason="the server stopped in the middle of it")
            return None
        self._wait_for_sites(step)
        self._journal.write("opened", step)
        arrived, missing = self._ask(step)
        names = [self._terms.sites[number].name for number in sorted(arrived)]
        total, reason = None, f"{len(arrived)} of {self._trust.sites} sites came, {self._trust.least} are needed"
        if len(arrived) >= self._trust.least:
            total, reason = self._unmasked(step, arrived, missing) if self._secure else (_sum(arrived), "")
        if total is None:
            self._journal.write("discarded", step, reason=reason, arrived=names, missing=missing)
            self._note(f"step {step} is discarded and paid for: {reason}")
            return None
        std = self._trust.carried_std(self._plan, len(arrived))
        self._journal.write("collected", step, arrived=names, missing=missing, noise_of_sites=std)
        return BoundedSum(total.to(self._vector.device), self._plan.sensitivity, self._plan.groups, std)

    def tell(self, threshold: float) -> None:
        """See `Transport`."""
        self._threshold = {"threshold": threshold}

    def _wait_for_sites(self, step: int) -> None:
        """Greets until enough sites are there; before this server's first step, until all are, or the deadline is over."""
        started, said = time.monotonic(), False
        while True:
            over = self._gathered or time.monotonic() - started > self._terms.deadline
            needed = self._trust.least if over else max(self._trust.least, self._trust.sites - len(self._members.ahead))
            greetings = self._members.greetings(self._channel.sites(), step)
            if len(self._members.present(step)) < needed:
                for address, reply in self._channel.exchange(greetings, min(_GREETING, self._terms.deadline)):
                    self._members.welcome(reply, address, greetings[address], step)
                    if len(self._members.present(step)) >= needed:
                        break
            there, ahead = len(self._members.present(step)), self._members.ahead
            if there >= needed:
                self._gathered = True
                return
            if self._trust.sites - len(ahead) < self._trust.least:
                raise UserError(
                    f"the sites took part in steps up to {max(ahead.values())}, and this run is at step {step}: it is not the "
                    "run that they know. Go on with that one, or make new terms."
                )
            if not said and over:
                self._note(f"waiting for sites: {there} of {self._trust.sites}, {self._trust.least} are needed")
                said = True
            time.sleep(0.2)

    def _ask(self, step: int) -> tuple[dict[int, Content], dict[str, str]]:
        """Asks all sites for their sums.

        Returns:
            The answers of the sites that came, by number, and for the others why they do not count.
        """
        content = encoded(self._sent.gather(), self._terms.broadcast)
        digest = digest_of(content)  # once, for all sites
        self._addresses, self._roster = self._members.present(step), self._members.offers(step)
        roster = self._addresses
        numbers = {address: number for number, address in roster.items()}
        packets = {
            address: self._signed("step", content, digest, step=step, **self._threshold, **self._offers_for(number))
            for number, address in roster.items()
        }
        greetings = self._members.greetings(set(self._channel.sites()) - set(numbers), step + 1)
        arrived: dict[int, Content] = {}
        missing = {site.name: "not there" for number, site in enumerate(self._terms.sites) if number not in roster}
        waiting = set(roster)
        for address, reply in self._channel.exchange(greetings | packets, self._terms.deadline):
            if address in greetings:
                self._members.welcome(reply, address, greetings[address], step + 1)
                continue
            number = numbers[address]
            waiting.discard(number)
            try:
                answer = self._read(reply, Sum, number, step)
                arrived[number] = self._checked(number, reply.vector if reply else b"")
                self._members.keep(number, answer.offer, step + 1)
            except Rejected as rejected:
                missing[self._terms.sites[number].name] = str(rejected)
                if reply is None:
                    self._members.lose(number)
                else:  # it is there, and is asked again
                    self._members.keep(number, None, step + 1)
            if not waiting:  # whoever is greeted may answer later
                break
        missing |= {self._terms.sites[number].name: "no answer before the deadline" for number in waiting}
        for number in waiting:
            self._members.lose(number)
        return arrived, missing

    def _unmasked(self, step: int, arrived: dict[int, Content], missing: dict[str, str]) -> tuple[Tensor | None, str]:
        """The total of masked sums, with the help of the sites that sent them; ``None``, and why there is none."""
        from dpfed.federation.secure.unmasking import Unmasking  # what it imports, only secure sums need

        terms, public = self._terms, {number: offer.public for number, offer in self._roster.items()}
        context = terms.fingerprint.encode()
        unmasking = Unmasking(self._trust.sites, self._trust.drops, context, step, public, self._numbers)
        for number, content in arrived.items():
            unmasking.add(number, np.frombuffer(content, "<u4"))
        packet = self._signed("reveal", step=step, arrived=sorted(unmasking.close()))
        numbers = {self._addresses[number]: number for number in arrived}
        reveals: dict[int, dict[int, bytes]] = {}
        reason = "nobody helped to unmask the sum"
        for address, reply in self._channel.exchange(dict.fromkeys(numbers, packet), terms.deadline):
            number = numbers[address]
            try:
                reveals[number] = self._read(reply, Shares, number, step).shares
                total = torch.from_numpy(grid_of(terms).decode(unmasking.total(reveals)))
            except Rejected as rejected:
                missing[terms.sites[number].name] = f"unmasking: {rejected}"
            except UserError as error:  # too few shares as yet, or a wrong one among them
                reason = str(error)
            else:
                most = self._most(arrived)
                norm = torch.linalg.vector_norm(total, dtype=torch.float64).item()
                return (total, "") if norm <= most else (None, "the total is larger than its groups and its noise allow")
        return None, reason

    def _checked(self, number: int, content: Content) -> Content:
        """The answer, if it can be a sum of this site.

        Raises:
            Rejected: for another shape, values that are not finite, or a norm that no honest sum of this site has.
        """
        if len(content) != 4 * self._numbers:
            raise Rejected("a sum of another shape")
        if self._secure:
            return content  # masked: any bits are possible
        norm = torch.linalg.vector_norm(decoded(content), dtype=torch.float64).item()
        if not np.isfinite(norm):
            raise Rejected("a sum that is not finite")
        if norm > self._most([number]):
            raise Rejected("a sum larger than its groups allow")
        return content

    def _most(self, sites: Any) -> float:
        """Largest norm that an honest sum over some sites has."""
        groups = sum(self._terms.sites[number].groups for number in sites)
        noise = self._trust.carried_std(self._plan, len(sites)) * (self._numbers**0.5 + _DEVIATIONS)
        return groups * self._plan.longest_part * (1 + _ROOM) + noise

    def _read(self, reply: Packet | None, kind: type[Any], number: int, step: int) -> Any:
        answer = read(reply, kind, number, self._terms.sites[number].signing_key, self._terms.fingerprint)
        if answer.step != step:
            raise Rejected("an answer to another question")
        return answer

    def _offers_for(self, number: int) -> dict[str, Any]:
        """What the others gave for this site to mask its sum with."""
        if not self._secure:
            return {}
        return {"offers": {str(other): _text(offer, number) for other, offer in self._roster.items() if other != number}}

    def _signed(self, kind: str, vector: bytes = b"", digest: str | None = None, **fields: Any) -> Packet:
        return sign(self._identity, self._terms.fingerprint, kind, vector, digest, **fields)


def _sum(arrived: dict[int, Content]) -> Tensor:
    """The sum in the order of the terms: the same, bit for bit, in whatever order the answers came."""
    first, *others = sorted(arrived)
    total = decoded(arrived[first])
    for number in others:
        total += decoded(arrived[number])
    return total


def _text(offer: Offer, number: int) -> str:
    return b64encode(offer.ciphertexts[number]).decode()
