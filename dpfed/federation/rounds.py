"""The coordinator's side of the protocol: a `Transport` whose workers are institutions.

A step: tell every site the parameters, take what comes before the deadline, check it, and add it up in the order of the terms.
Sites that are new, or missed a step, are greeted at the same time and take part from the next step on. What is missing counts
as zeros: divisor and noise do not depend on who came.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.errors import UserError
from dpfed.federation.identity import Identity
from dpfed.federation.journal import Journal
from dpfed.federation.messages import Untrusted, alleged, seal, unseal
from dpfed.federation.packets import Packet
from dpfed.federation.site_worker import frozen_digest
from dpfed.federation.terms import Terms
from dpfed.federation.vectors import decoded, encoded, grid_of
from dpfed.models.parameters import TrainableVector

_GREETING = 15.0  # seconds that a greeting may take
_ROOM = 1e-3  # of a bound: sites add up in float32


class Channel(Protocol):
    """Carries packets to sites and back."""

    def sites(self) -> list[str]:
        """The addresses that can be reached now."""

    def exchange(self, packets: dict[str, Packet], seconds: float) -> Iterator[tuple[str, Packet | None]]:
        """Sends a packet to each address and yields what comes back: all at once, until all have answered or time is up.

        Args:
            packets: by address.
            seconds: to wait at most.

        Yields:
            An address and its reply; ``None``: it failed.
        """


class Rejected(Exception):
    """An answer that is not what the terms allow; the phrase goes into the journal."""


class Federation:
    """Collects a step's sums from the sites.

    Args:
        terms: of the federation.
        identity: the coordinator's.
        channel: reaches the sites.
        model: whose parameters the sites get.
        journal: of the run.
        note: told what the operator should see.
    """

    def __init__(
        self,
        terms: Terms,
        identity: Identity,
        channel: Channel,
        model: nn.Module,
        journal: Journal,
        note: Callable[[str], None],
    ) -> None:
        if identity.signing_key != terms.coordinator:
            raise UserError("this is not the coordinator's key that the terms name: use the folder in which they were made.")
        self._terms, self._identity, self._channel, self._journal, self._note = terms, identity, channel, journal, note
        self._plan, self._trust = terms.privacy_plan, terms.trust_model
        self._vector, self._frozen = TrainableVector(model), frozen_digest(model)
        self._addresses: dict[int, str] = {}  # of the sites that take part, by number
        self._offers: dict[int, dict[str, Any]] = {}  # for the next step that each can mask
        self._roster: dict[int, dict[str, Any]] = {}  # those of the current step
        self._secure = terms.trust == "secure"

    def collect(self, step: int) -> BoundedSum | None:
        """See `Transport`."""
        if self._journal.opened(step):  # by a server that did not live to see its end
            self._journal.write("discarded", step, reason="the server stopped in the middle of it")
            return None
        self._wait_for_sites(step)
        self._journal.write("opened", step)
        arrived, missing = self._ask(step)
        names = [self._terms.sites[number].name for number in sorted(arrived)]
        total, reason = None, f"{len(arrived)} of {self._trust.sites} sites came, {self._trust.least} are needed"
        if len(arrived) >= self._trust.least:
            total, reason = self._add_up(step, arrived, missing)
        if total is None:
            self._journal.write("discarded", step, reason=reason, arrived=names, missing=missing)
            self._note(f"step {step} is discarded and paid for: {reason}")
            return None
        std = self._trust.carried_std(self._plan, len(arrived))
        self._journal.write("collected", step, arrived=names, missing=missing, noise_of_sites=std)
        return BoundedSum(total.to(self._vector.device), self._plan.sensitivity, self._plan.groups, std)

    def _wait_for_sites(self, step: int) -> None:
        """Greets until enough sites are there; before the first step, until all are, or the deadline is over."""
        started, said = time.monotonic(), False
        while True:
            for number in [number for number in self._addresses if self._secure and not self._has_offer(number, step)]:
                del self._addresses[number]  # greeted again, for an offer
            known = set(self._addresses.values())
            newcomers = {address: self._greeting(step) for address in self._channel.sites() if address not in known}
            self._welcome(self._channel.exchange(newcomers, _GREETING), newcomers, step)
            over = step > 0 or time.monotonic() - started > self._terms.deadline
            if len(self._addresses) >= (self._trust.least if over else self._trust.sites):
                return
            if not said and over:
                self._note(f"waiting for sites: {len(self._addresses)} of {self._trust.sites}, {self._trust.least} are needed")
                said = True
            time.sleep(0.2)

    def _ask(self, step: int) -> tuple[dict[int, bytes], dict[str, str]]:
        """Asks all sites for their sums.

        Returns:
            The answers of the sites that came, by number, and for the others why they do not count.
        """
        content = encoded(self._vector.gather(), self._terms.broadcast)
        roster = sorted(self._addresses)
        packets, numbers = {}, {address: number for number, address in self._addresses.items()}
        self._roster = {number: self._offers[number] for number in roster}
        for number in roster:
            packets[self._addresses[number]] = self._seal("step", content, step=step, **self._offers_for(number, roster))
        newcomers = {address: self._greeting(step + 1) for address in self._channel.sites() if address not in numbers}
        arrived: dict[int, bytes] = {}
        missing = {site.name: "not there" for number, site in enumerate(self._terms.sites) if number not in roster}
        waiting = set(roster)
        for address, reply in self._channel.exchange(packets | newcomers, self._terms.deadline):
            if address in newcomers:
                self._welcome([(address, reply)], newcomers, step + 1)
                continue
            number = numbers[address]
            waiting.discard(number)
            try:
                header = self._opened(reply, number, "sum", step)
                arrived[number] = self._checked(number, reply.vector)
                self._offers[number] = header.get("offer", {})
            except Rejected as rejected:
                missing[self._terms.sites[number].name] = str(rejected)
            if not waiting:  # whoever is greeted may answer later
                break
        missing |= {self._terms.sites[number].name: "no answer before the deadline" for number in waiting}
        for number in set(roster) - set(arrived):
            del self._addresses[number]
        return arrived, missing

    def _add_up(self, step: int, arrived: dict[int, bytes], missing: dict[str, str]) -> tuple[Tensor | None, str]:
        if not self._secure:
            first, *others = (decoded(arrived[number]) for number in sorted(arrived))
            for other in others:
                first = first + other
            return first, ""
        return self._unmasked(step, arrived, missing)

    def _unmasked(self, step: int, arrived: dict[int, bytes], missing: dict[str, str]) -> tuple[Tensor | None, str]:
        """The total of masked sums, with the help of the sites that sent them."""
        from dpfed.federation.unmasking import Unmasking  # what it imports, only secure sums need

        terms, size = self._terms, self._vector.numel
        public = {number: base64.b64decode(offer["public"]) for number, offer in self._roster.items()}
        try:
            unmasking = Unmasking(self._trust.sites, terms.tolerated, terms.fingerprint.encode(), step, public, size)
            for number, content in arrived.items():
                unmasking.add(number, np.frombuffer(content, "<u4"))
            packet = self._seal("reveal", step=step, arrived=sorted(unmasking.close()))
            numbers = {self._addresses[number]: number for number in arrived}
            reveals: dict[int, dict[int, bytes]] = {}
            for address, reply in self._channel.exchange(dict.fromkeys(numbers, packet), terms.deadline):
                number = numbers[address]
                try:
                    shares = self._opened(reply, number, "shares", step)["shares"]
                    reveals[number] = {int(of): base64.b64decode(share) for of, share in shares.items()}
                except Rejected as rejected:
                    missing[terms.sites[number].name] = f"unmasking: {rejected}"
                if len(reveals) >= self._trust.least:
                    break
            return torch.from_numpy(grid_of(terms).decode(unmasking.total(reveals))), ""
        except UserError as error:
            return None, str(error)

    def _checked(self, number: int, content: bytes) -> bytes:
        """The answer, if it can be a sum of this site.

        Raises:
            Rejected: for another shape, values that are not finite, or a norm that no honest sum of this site has.
        """
        if len(content) != 4 * self._vector.numel:
            raise Rejected("a sum of another shape")
        if self._secure or not self._plan.private:
            return content  # masked: any bits are possible
        norm = torch.linalg.vector_norm(decoded(content), dtype=torch.float64).item()
        most = self._terms.sites[number].groups * self._plan.bound * (1 + _ROOM)
        most += self._trust.share_std(self._plan) * (
            self._vector.numel**0.5 + 8
        )  # a Gaussian's norm is no larger but once in 10^14
        if not norm <= most:
            raise Rejected("a sum that is not finite" if not np.isfinite(norm) else "a sum larger than its groups allow")
        return content

    def _opened(self, reply: Packet | None, number: int, kind: str, step: int) -> dict[str, Any]:
        """The content of a site's answer.

        Raises:
            Rejected: if it is no answer of this site to this question.
        """
        if reply is None:
            raise Rejected("its answer failed to come")
        try:
            header = unseal(reply, self._terms.sites[number].signing_key, self._terms.fingerprint)
        except (Untrusted, ValueError, KeyError, TypeError) as error:
            raise Rejected("an answer that the site did not sign") from error
        if header["kind"] == "refusal":
            raise Rejected(f"refused: {header['reason']}")
        if header["kind"] != kind or header.get("step", step) != step:
            raise Rejected("an answer to another question")
        return header

    def _greeting(self, step: int) -> Packet:
        return self._seal("hello", nonce=secrets.token_hex(16), step=step)

    def _welcome(self, replies: Iterator[tuple[str, Packet | None]], greetings: dict[str, Packet], step: int) -> None:
        """Takes sites in that answered their greeting rightly."""
        for address, reply in replies:
            number = alleged(reply).get("site") if reply is not None else None
            if type(number) is not int or not 0 <= number < self._trust.sites:
                continue
            name = self._terms.sites[number].name
            try:
                header = self._opened(reply, number, "hello", step)
                if header["nonce"] != alleged(greetings[address])["nonce"]:
                    raise Rejected("an answer to another question")
                if header["frozen"] != self._frozen:
                    raise Rejected("weights that are not trained differ from the coordinator's")
            except Rejected as rejected:
                self._note(f"{name} is not taken in: {rejected}")
                continue
            self._addresses[number], self._offers[number] = address, header.get("offer", {})

    def _has_offer(self, number: int, step: int) -> bool:
        return self._offers.get(number, {}).get("step") == step

    def _offers_for(self, number: int, roster: list[int]) -> dict[str, Any]:
        """What the others gave for this site to mask its sum with."""
        if not self._secure:
            return {}
        return {"offers": {str(other): self._roster[other]["for"][str(number)] for other in roster if other != number}}

    def _seal(self, kind: str, vector: bytes = b"", **fields: Any) -> Packet:
        return seal(self._identity, self._terms.fingerprint, kind, vector, **fields)
