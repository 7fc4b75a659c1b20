"""A site's side of secure aggregation: its vector leaves only under masks that cancel in the sum.

A site calls in each step: `offer` (keys and shares for the others), `open` (the others' offers), `mask` (the vector), and where
sites may drop out `confirm` (the sites that arrived) and `reveal` (shares with which the server removes masks that did not
cancel). The protocol is that of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS
2017), with its first two rounds joined: long-term keys are agreed on beforehand, so round keys travel with the encrypted
shares. docs/secure-aggregation.md explains what the protocol protects, against whom, and why.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpfed.errors import UserError
from dpfed.federation.secure.envelopes import Envelopes, View, offer_lengths
from dpfed.federation.secure.masks import StepKeys, add_mask, pair_sign, public_bytes
from dpfed.federation.secure.shares import SECRET_BYTES, split
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.identity import Identity, is_signed
from dpfed.protocol.trust import Trust

_PENDING = 4  # most steps with offers at a time; two SuperNodes at one site, or a late greeting, ask for steps ahead


class NotOffered(UserError):
    """Raised for a step that this site cannot mask, or cannot help to unmask because it masked another step last.

    A site cannot mask a step for which it holds no offer: it has masked this step or a later one, was restarted, never made the
    offer, or has made offers for four later steps.
    """


class OtherView(UserError):
    """Raised if what the server says about a step contradicts what this site saw, or what other sites have signed.

    The error is also raised if the server names too few sites, or asks about masks in a run from which no site may drop out.
    """


@dataclass(frozen=True)
class Offer:
    """A site's offer before a step.

    Attributes:
        public: Part for the server: the round public key and, where sites may drop out, the check value of the self mask's
            seed.
        envelopes: Envelope for each other site, by site number: the round public key and, encrypted, one share of each secret
            (where no site may drop out, an empty plaintext).
    """

    public: bytes
    envelopes: dict[int, bytes]


@dataclass(frozen=True)
class _Shares:
    """The shares that this site holds of another site's two secrets, or of its own two. It never hands out both shares."""

    of_seed: bytes = field(repr=False)
    of_key: bytes = field(repr=False)


@dataclass(frozen=True)
class _Offered:
    key: X25519PrivateKey = field(repr=False)
    seed: bytes = field(repr=False)
    own: _Shares = field(repr=False)
    offer: Offer = field(repr=False)


@dataclass(frozen=True)
class Opened:
    """The opened offers of a step's roster: everything that is needed to mask a vector."""

    step: int
    view: View
    shares: dict[int, _Shares] = field(repr=False)
    pair_keys: dict[int, bytes] = field(repr=False)


@dataclass
class _Masked:
    step: int
    view: View
    shares: dict[int, _Shares] = field(repr=False)  # by member of the roster; empty once revealed
    arrived: frozenset[int] | None = None  # as this site confirmed or revealed; never another set
    revealed: bytes = field(default=b"", repr=False)


class Masking:
    """Masks one site's vectors in one run.

    The step's secrets are held by this object only: a site that is restarted has dropped out of the step.

    After a restart, the caller must not mask a step that was masked before. The site's ledger ensures this: it refuses such a
    step.

    Args:
        me: Number of this site.
        identity: This site's long-term keys.
        sites: Cards with the long-term public keys of all sites, in the order of the site numbers, from terms that this site
            has verified.
        trust: Trust mode, with the numbers of sites that may drop out or collude.
        context: Fingerprint of the run's agreed terms.

    Raises:
        UserError: If `sites` and `trust` differ in the number of sites, or this site's card does not name the exchange
            key of `identity`.
    """

    def __init__(self, me: int, identity: Identity, sites: Sequence[SiteCard], trust: Trust, context: bytes) -> None:
        if len(sites) != trust.sites:
            raise UserError(f"there are {len(sites)} cards of {trust.sites} sites: give the cards of all. [mask-cards]")
        if sites[me].exchange_key != identity.exchange_key:
            raise UserError(f"these keys are not those of site {me}: give the keys of that site. [mask-other-site]")
        self._me = me
        self._identity = identity
        self._sites = list(sites)
        self._trust = trust
        self._context = context
        self._envelopes = Envelopes(me, identity, sites, offer_lengths(trust)[1])
        self._offered: dict[int, _Offered] = {}  # by step, until it or a later one is masked
        self._masked: _Masked | None = None

    def __repr__(self) -> str:
        return f"Masking(site {self._me} of {self._trust.sites})"

    def offer(self, step: int) -> Offer:
        """Draws this site's secrets of a step, splits them, and returns the offer that carries the shares to the other sites.

        A site may hold offers for several steps: if it is greeted in the middle of step s, it makes its offer for step s + 1
        before it has revealed, or even masked, step s. It holds at most four offers, those for the latest steps. A repeated
        call for a step returns the same offer, as long as the site holds it.

        Raises:
            NotOffered: If the step, or a later one, was masked before.
        """
        if offered := self._offered.get(step):
            return offered.offer
        if self._masked is not None and step <= self._masked.step:
            raise NotOffered(
                f"step {step}: site {self._me} makes no offer, because it has masked step {self._masked.step}. [mask-late]"
            )
        key, seed = X25519PrivateKey.generate(), os.urandom(SECRET_BYTES)
        keys, public = StepKeys(self._context, step), public_bytes(key)
        shares = self._dealt(seed, key)
        envelopes = {
            peer: self._envelopes.seal(keys, peer, public, share.of_seed + share.of_key)
            for peer, share in enumerate(shares)
            if peer != self._me
        }
        check = keys.self_check(seed, self._me) if self._trust.drops else b""
        offered = _Offered(key, seed, shares[self._me], Offer(public + check, envelopes))
        self._offered[step] = offered
        while len(self._offered) > _PENDING:
            del self._offered[min(self._offered)]
        return offered.offer

    def open(self, step: int, offers: dict[int, bytes]) -> Opened:
        """Opens the others' offers. No state changes, so this can be done before a step is charged, and repeated.

        Args:
            step: Step for which this site has made an offer.
            offers: Envelopes for this site, by sender. The senders and this site are the step's roster.

        Raises:
            NotOffered: If this site holds no offer of its own for the step.
            BadOffer: If a stated sender did not make its offer for this site, step and run.
            OtherView: If the roster is too small.
            UserError: If a public key is not valid.
        """
        if (offered := self._offered.get(step)) is None:
            raise NotOffered(
                f"step {step} cannot be masked: site {self._me} masked it before, or has no offer of its own. [mask-no-offer]"
            )
        if len(offers) + 1 < (needed := self._trust.least):
            raise OtherView(f"step {step}: offers of {len(offers) + 1} sites, at least {needed} are needed. [mask-few-offers]")
        keys, partners = StepKeys(self._context, step), self._trust.partners(self._me)
        public, shares, pair_keys = {self._me: public_bytes(offered.key)}, {self._me: offered.own}, {}
        for sender, envelope in offers.items():
            public[sender], text = self._envelopes.open(keys, sender, envelope)
            shares[sender] = _Shares(text[:SECRET_BYTES], text[SECRET_BYTES:])
            if sender in partners:
                pair_keys[sender] = keys.pair_mask(offered.key, public[sender], self._me, sender)
        return Opened(step, View(keys, public), shares, pair_keys)

    def mask(self, opened: Opened, values: np.ndarray) -> np.ndarray:
        """Masks this site's vector. A site masks one vector in a step.

        The site's own offers for this step and for earlier steps are deleted.

        Args:
            opened: The step's offers, as `Masking.open` returned them.
            values: Vector, shape ``(P,)``, uint32, see `Grid.encode`; it is not changed.

        Returns:
            The masked vector, shape ``(P,)``, uint32; uniformly distributed to anyone who does not hold the step's secrets.

        Raises:
            NotOffered: If this site has already masked a vector for this step or a later one, or no longer holds its offer.
            ValueError: If the vector has another shape or dtype.
        """
        if values.dtype != np.uint32 or values.ndim != 1:
            raise ValueError(f"expected a (P,) uint32 vector, got {values.shape} {values.dtype}")
        if (offered := self._offered.get(opened.step)) is None:
            raise NotOffered(f"step {opened.step} cannot be masked: site {self._me} masked it before. [mask-again]")
        self._offered = {step: kept for step, kept in self._offered.items() if step > opened.step}
        self._masked = _Masked(opened.step, opened.view, opened.shares)
        masked = values.copy()
        if self._trust.drops:
            add_mask(masked, StepKeys(self._context, opened.step).self_mask(offered.seed, self._me), +1)
        for partner, key in opened.pair_keys.items():
            add_mask(masked, key, pair_sign(self._me, partner))
        return masked

    def signed_roster(self, step: int) -> bytes:
        """Returns this site's signature of the roster for which it masked a step.

        Raises:
            NotOffered: If this step is not the step that this site masked last.
            OtherView: If no site may drop out of this run.
        """
        return self._identity.sign(self._at(step).view.roster())

    def confirm(self, step: int, arrived: Iterable[int]) -> bytes:
        """Signs the set of sites whose vectors have arrived according to the server. A site signs one set in a step.

        Raises:
            NotOffered: If this step is not the step that this site masked last.
            OtherView: If the set is refused, see `reveal`.
        """
        masked, arrived = self._at(step), frozenset(arrived)
        self._check(masked, arrived)
        masked.arrived = arrived
        return self._identity.sign(masked.view.arrival_log(arrived))

    def reveal(self, step: int, arrived: Iterable[int], rosters: dict[int, bytes], votes: dict[int, bytes]) -> bytes:
        """Hands out the shares with which the server removes the remaining masks: one for each member of the roster.

        For a member whose vector arrived, this is a share of its self mask's seed; for another member, a share of its round
        key. A site never hands out both shares of a member: together they would open that member's vector.

        Args:
            step: Step that was masked last.
            arrived: Sites whose masked vectors are in the sum.
            rosters: Signatures of the roster by the sites in `arrived`, see `signed_roster`.
            votes: Signatures of the arrivals, see `confirm`; needed if a member of the roster is not in `arrived`.

        Returns:
            The shares, 32 bytes for each member of the roster, in order. A repeated call returns the same shares.

        Raises:
            NotOffered: If this step is not the step that this site masked last.
            OtherView: If no site may drop out of this run, if this site confirmed or revealed another set before, if too few
                sites or sites outside the roster arrived, if an arrived site has not signed the roster, or if too few sites
                have signed these arrivals. Nothing is revealed then.
        """
        masked, arrived = self._at(step), frozenset(arrived)
        self._check(masked, arrived)
        wrong = [site for site in arrived if not self._is_signed(site, masked.view.roster(), rosters)]
        if wrong:
            raise OtherView(f"step {step}: sites {sorted(wrong)} have not signed the roster of site {self._me}. [mask-roster]")
        if arrived != masked.view.members:
            agreeing = sum(self._is_signed(site, masked.view.arrival_log(arrived), votes) for site in masked.view.members)
            if agreeing < self._trust.least:
                raise OtherView(
                    f"step {step}: {agreeing} sites have signed this set of arrived sites, at least {self._trust.least} must; "
                    "nothing is revealed. [mask-few-votes]"
                )
        masked.arrived = arrived
        if masked.shares:
            shares = sorted(masked.shares.items())
            masked.revealed = b"".join(share.of_seed if site in arrived else share.of_key for site, share in shares)
            masked.shares = {}
        return masked.revealed

    def _at(self, step: int) -> _Masked:
        """Returns what this site keeps of a step, if the step is the one masked last and masks may have to be removed."""
        if not self._trust.drops:
            raise OtherView(
                "the server asked for help with removing masks, but no site may drop out of this run, so all masks cancel and "
                "none is ever removed. [mask-no-drops]"
            )
        if self._masked is None or self._masked.step != step:
            raise NotOffered(f"step {step} is over: site {self._me} did not mask it, or is at a later step. [mask-step-over]")
        return self._masked

    def _check(self, masked: _Masked, arrived: frozenset[int]) -> None:
        """Refuses a set of arrived sites that no honest server names."""
        step = masked.step
        if masked.arrived not in (None, arrived):
            raise OtherView(f"step {step}: a second set of arrived sites is refused. [mask-second-set]")
        if strangers := sorted(arrived - masked.view.members):
            raise OtherView(f"step {step}: sites {strangers}, said to have arrived, are not in its roster. [mask-strangers]")
        if len(arrived) < self._trust.least:
            raise OtherView(
                f"step {step}: {len(arrived)} sites arrived, {self._trust.least} sites are needed; nothing is revealed. "
                "[mask-sites]"
            )

    def _is_signed(self, site: int, statement: bytes, signatures: dict[int, bytes]) -> bool:
        return site in signatures and is_signed(statement, signatures[site], self._sites[site].signing_key)

    def _dealt(self, seed: bytes, key: X25519PrivateKey) -> list[_Shares]:
        """Returns each site's shares of this site's two secrets, by site number; empty shares if no site may drop out."""
        if not self._trust.drops:  # nothing will have to be recovered
            return [_Shares(b"", b"")] * self._trust.sites
        dealt = split([seed, key.private_bytes_raw()], self._trust.least, self._trust.sites)
        return [_Shares(*shares) for shares in zip(*dealt, strict=True)]
