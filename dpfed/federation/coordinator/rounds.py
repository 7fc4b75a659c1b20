"""The coordinator's side of the protocol: a `Transport` whose workers are institutions.

In a step, the coordinator sends the parameters to all sites that can take part, takes the answers that come before the
deadline, checks them, and adds them up: masked sums as they come, other sums in the order of the terms. Sites that are new, or
missed a step, are greeted at the same time and take part from the next step on. A missing sum counts as zeros: the divisor and
the planned noise do not depend on which sites answered. If too few sites answer, the step is discarded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.errors import UserError
from dpfed.federation.coordinator.members import Backoff, Channel, Members
from dpfed.federation.site.worker import frozen_digest
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.protocol.answers import Answer, Rejected, Sum, read
from dpfed.protocol.identity import Identity
from dpfed.protocol.journal import ArrivalLog, Journal
from dpfed.protocol.messages import LONGEST_HEADER, Content, Packet, digest_of, sign
from dpfed.protocol.terms import Terms
from dpfed.protocol.vectors import encoded, form_of_sums, grid_of, sum_of

if TYPE_CHECKING:
    from dpfed.federation.coordinator.secure_sum import SecureSum

_GREETING = 60.0  # seconds that a greeting may take
_QUIET, _AGAIN = 10.0, 60.0  # seconds of waiting before the operator is told, and between further messages
_PAUSES = 0.2, 2.0  # seconds between two rounds of greetings, at first and at last
_ROOM = 1e-3  # relative tolerance of a bound: sites add up in float32
_DEVIATIONS = 8  # the norm of P standard Gaussians exceeds sqrt(P) by more than this once in 10^14


class Federation:
    """The coordinator's `Transport`: asks the sites for their sums of a step, and adds them up.

    Args:
        terms: Terms of the federation.
        identity: Coordinator's long-term cryptographic keys.
        channel: Connection to the sites.
        model: Model whose parameters the sites get.
        journal: Journal of the run.
        paid: Run's ledger as it was when this server created or resumed the run.
        note: Function that receives messages for the operator.
        backoff: Pauses for sites for which a step has waited in vain, see `Members`.
        arrival_log: Log of the times at which answers come, for live views; default: nothing is written.
        left: Function that returns the names of the sites that have left, see `Members`.

    Raises:
        UserError: If the terms name the key of another coordinator.
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
        backoff: Backoff | None = None,
        arrival_log: ArrivalLog | None = None,
        left: Callable[[], Collection[str]] = tuple,
    ) -> None:
        if identity.signing_key != terms.coordinator:
            raise UserError("the terms name another coordinator key: use the folder in which they were made. [coordinator-key]")
        self._terms, self._identity, self._channel = terms, identity, channel
        self._journal, self._paid, self._note = journal, paid, note
        self._plan, self._trust = terms.privacy_plan, terms.trust_model
        self._vector = TrainableVector(model)
        self._members = Members(terms, identity, frozen_digest(model), note, backoff, left)
        self._secure, self._grid, self._form = terms.trust == "secure", grid_of(terms), form_of_sums(terms)
        self._unit = self._plan.grid_of().unit if self._form == "int64" else 1.0
        self._numbers = self._vector.numel + self._plan.statistics_count  # length of a sum
        self._threshold: dict[str, float] = {}  # the clipping threshold, as a header field of the steps
        self._arrival_log = arrival_log or ArrivalLog()
        self._gathered = False  # whether the wait for all sites is over
        self._addresses: dict[int, str] = {}  # addresses of the sites that the current step asks
        self._masked: SecureSum | None = None  # masked sums of that step
        self._without: list[str] = []  # names of the sites that were missing in the last step

    def aggregate(self, step: int) -> BoundedSum | None:
        """Returns the bounded sum of a step, see `Transport`; ``None``: the step is discarded.

        Raises:
            UserError: If so many sites have already taken part in this step or a later one that the step cannot succeed, if the
                step was released before and its release is lost, or if another process writes the journal, too.
        """
        if self._paid.release_of(step) is not None:
            raise UserError(
                f"step {step} was released, but its release is no longer stored, and the sites do not answer a step twice. "
                "Restore the run's newest checkpoint, then resume. [round-released]"
            )
        if self._journal.opened(step):  # by a server that died during the step
            reason = "the server stopped during it"
            self._journal.write("discarded", step, reason=reason)
            self._note(f"step {step} is discarded and charged: {reason}")
            return None
        self.wait_for_sites(step)
        self._journal.write("opened", step)
        arrived, missing = self._ask(step)
        names = [self._terms.sites[number].name for number in sorted(arrived)]
        total, reason = None, f"{len(arrived)} of {self._trust.sites} sites answered, {self._trust.least} sites are needed"
        if len(arrived) >= self._trust.least:
            if self._secure:
                total, reason = self._unmasked(step, arrived, missing)
            else:  # in the order of the terms: bit-identical, whatever the order of the answers
                total = sum_of([arrived[number] for number in sorted(arrived)], self._grid, self._form)
        if total is None:
            self._journal.write("discarded", step, reason=reason, arrived=names, missing=missing)
            self._note(f"step {step} is discarded and charged: {reason}")
            return None
        std = self._trust.carried_std(self._plan, len(arrived))
        self._journal.write("collected", step, arrived=names, missing=missing, noise_of_sites=std)
        sensitivity, groups = self._plan.sensitivity_of(step), self._plan.groups
        return BoundedSum(total.to(self._vector.device), sensitivity, groups, std, self._unit)

    def set_clip_threshold(self, threshold: float) -> None:
        """Sets the clipping threshold for the next steps, see `Transport`."""
        self._threshold = {"threshold": threshold}

    def wait_for_sites(self, step: int) -> None:
        """Greets sites until as many can take part as a step needs, without a time limit.

        Before the first step of this process, the method first waits for all sites, at most as long as a step's deadline.

        Raises:
            UserError: If so many sites have already taken part in this step or a later one that the step cannot succeed.
        """
        started, pause, absent = time.monotonic(), _PAUSES[0], [""]
        say_at = started + min(_QUIET, self._terms.deadline)
        while True:
            left = 0.0 if self._gathered else max(0.0, started + self._terms.deadline - time.monotonic())
            over = not left
            needed = self._trust.least if over else max(self._trust.least, self._trust.sites - len(self._members.ahead))
            addresses = self._channel.sites()
            self._members.connected(addresses)
            greetings = self._members.greetings(addresses, step)
            if len(self._members.present(step)) < needed:
                seconds = min(_GREETING, self._terms.deadline)
                for address, reply in self._channel.exchange(greetings, seconds, LONGEST_HEADER):
                    self._members.welcome(reply, address, greetings[address], step)
                    if len(self._members.present(step)) >= needed:
                        break
            there, ahead = len(self._members.present(step)), self._members.ahead
            if there >= needed:
                self._gathered = True
                self._say_who_is_missing(step)
                return
            if self._trust.sites - len(ahead) < self._trust.least:
                raise UserError(
                    f"the sites took part in steps up to {max(ahead.values())}, but this run is at step {step}: they took "
                    "part in another run. Resume that run, or make new terms. [round-other-run]"
                )
            if absent != (absent := list(self._members.absent(step).values())):
                self._arrival_log.ask(step, absent, left or None)
            if time.monotonic() > say_at:
                counts = f"{there} of {self._trust.sites} sites are ready, {self._trust.least} sites are needed"
                late = (
                    f" (at most {left:.0f} s more, then the step starts without the missing ones)"
                    if left and there >= self._trust.least
                    else ""
                )
                self._note(f"waiting for sites{late}: {counts}. {self._members.absence(step)}")
                say_at = time.monotonic() + _AGAIN
            time.sleep(pause)
            pause = min(1.5 * pause, _PAUSES[1])

    def _say_who_is_missing(self, step: int) -> None:
        """Tells the operator which sites a step lacks, whenever these change, and which sites have come back."""
        there = self._members.present(step)
        names = [site.name for site in self._terms.sites]
        without = [name for number, name in enumerate(names) if number not in there]
        if came := [name for name in self._without if name not in without]:
            self._note(f"{', '.join(came)} {'takes' if len(came) == 1 else 'take'} part from step {step} on")
        if without and without != self._without:
            self._note(f"step {step} continues without {len(without)} of {len(names)} sites. {self._members.absence(step)}")
        self._without = without

    def _ask(self, step: int) -> tuple[dict[int, Content], dict[str, str]]:
        """Asks all sites that can take part in a step for their sums.

        Returns:
            The sums of the sites that answered, by site number (empty bytes for masked sums, see `_checked`); and, by site
            name, the reasons why the other sites do not count.
        """
        content = encoded(self._vector.gather(), self._terms.broadcast)
        digest = digest_of(content)  # once, for all sites
        roster = self._addresses = self._members.present(step)
        self._masked = self._masked_sum(step)
        numbers = {address: number for number, address in roster.items()}
        packets = {
            address: self._signed("step", content, digest, step=step, **self._threshold, **self._offers_for(number))
            for number, address in roster.items()
        }
        greetings = self._members.greetings(set(self._channel.sites()) - set(numbers), step + 1)
        arrived: dict[int, Content] = {}
        names = [site.name for site in self._terms.sites]
        missing = self._members.missing(step)
        waiting = set(roster)
        most = LONGEST_HEADER + self._bytes_of_a_sum
        self._arrival_log.ask(step, [names[number] for number in roster], self._terms.deadline)
        for address, reply in self._channel.exchange(greetings | packets, self._terms.deadline, most):
            if address in greetings:
                self._members.welcome(reply, address, greetings[address], step + 1)
                continue
            number = numbers[address]
            if number not in waiting:  # the first answer counts
                continue
            waiting.discard(number)
            try:
                answer = self._read(reply, Sum, number, step)
                arrived[number] = self._checked(number, reply.vector if reply else b"", answer)
                self._members.keep(number, answer.offer, step + 1)
                self._members.answered(number)
                self._arrival_log.came(step, self._terms.sites[number].name)
            except Rejected as rejected:
                missing[self._terms.sites[number].name] = str(rejected)
                if reply is None:
                    self._members.lose(number, address, str(rejected))
                else:  # the site is there, and is asked again
                    self._members.keep(number, None, step + 1)
            if not waiting:  # greeted sites may answer later
                break
        missing |= {self._terms.sites[number].name: "no answer before the deadline" for number in waiting}
        for number in waiting:
            self._members.hung(number, roster[number], self._terms.deadline, step)
        return arrived, missing

    def _masked_sum(self, step: int) -> SecureSum | None:
        if not self._secure:
            return None
        from dpfed.federation.coordinator.secure_sum import SecureSum  # only secure sums need its imports

        return SecureSum(self._terms, step, self._members.offers(step), self._numbers)

    def _unmasked(self, step: int, arrived: dict[int, Content], missing: dict[str, str]) -> tuple[Tensor | None, str]:
        """Unmasks the total with the help of the sites that sent masked sums; or returns ``None`` and the reason."""

        def ask(kind: str, expected: type[Answer], fields: dict[str, Any]) -> Iterator[tuple[int, Any]]:
            packet, numbers = self._signed(kind, step=step, **fields), {self._addresses[number]: number for number in arrived}
            packets = dict.fromkeys(numbers, packet)
            for address, reply in self._channel.exchange(packets, self._terms.deadline, LONGEST_HEADER):
                number = numbers[address]
                try:
                    yield number, self._read(reply, expected, number, step)
                except Rejected as rejected:
                    missing[self._terms.sites[number].name] = f"unmasking: {rejected}"

        assert self._masked is not None  # made before the sites were asked
        values, reason = self._masked.total(ask)
        if values is None:
            return None, reason
        assert self._grid is not None  # every secure sum has a grid
        total = torch.from_numpy(self._grid.decode(values))
        norm = torch.linalg.vector_norm(total, dtype=torch.float64).item()
        return (total, "") if norm <= self._most(arrived) else (None, "its norm is larger than clipped groups and noise allow")

    def _checked(self, number: int, content: Content, answer: Sum) -> Content:
        """Returns a site's sum if an honest site could have sent it.

        A masked sum is added to the total of the masked sums; empty bytes are returned in its place.

        Raises:
            Rejected: If the sum has another length, values that are not finite, or a norm that no honest sum of this site has.
                A masked sum may be any bits; `SecureSum.add` says why one is rejected.
        """
        if len(content) != self._bytes_of_a_sum:
            raise Rejected(f"its sum has {len(content):,} bytes, expected {self._bytes_of_a_sum:,}")
        if self._masked is not None:
            self._masked.add(number, answer, content)
            return b""  # it is in the total already
        numbers = sum_of([content], self._grid, self._form).double()
        norm = self._unit * torch.linalg.vector_norm(numbers).item()
        if not np.isfinite(norm):
            raise Rejected("its sum is not finite")
        if norm > self._most([number]):
            raise Rejected("the norm of its sum is larger than clipped groups and noise allow")
        return content

    @property
    def _bytes_of_a_sum(self) -> int:
        return (8 if self._form == "int64" else 4) * self._numbers

    def _most(self, sites: Any) -> float:
        """Returns a bound on the norm of an honest sum over the given sites. Noise exceeds it about once in 10^14 sums."""
        groups = sum(self._terms.sites[number].groups for number in sites)
        noise = self._trust.carried_std(self._plan, len(sites)) * (self._numbers**0.5 + _DEVIATIONS)
        return groups * self._plan.longest_part * (1 + _ROOM) + noise

    def _read(self, reply: Packet | None, kind: type[Any], number: int, step: int) -> Any:
        answer = read(reply, kind, number, self._terms.sites[number].signing_key, self._terms.fingerprint)
        if answer.step != step:
            raise Rejected("it answered another request")
        return answer

    def _offers_for(self, number: int) -> dict[str, Any]:
        """Returns the other sites' offers with which this site masks its sum, as header fields."""
        return {} if self._masked is None else self._masked.offers_for(number)

    def _signed(self, kind: str, vector: bytes = b"", digest: str | None = None, **fields: Any) -> Packet:
        return sign(self._identity, self._terms.fingerprint, kind, vector, digest, **fields)
