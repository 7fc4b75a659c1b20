"""A site's side of secure aggregation: its vector leaves only under masks that cancel in the sum.

Per step: `offer` (keys and shares for the others), `mask` (the vector), `reveal` (shares that let the server take away what
did not cancel). The protocol is that of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine
Learning" (CCS 2017), with its first two rounds joined: long-term keys are agreed beforehand, so round keys travel inside the
encrypted offers. docs/secure-aggregation.md says what it protects, against whom, and why.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpfed.errors import UserError
from dpfed.federation.secure.masks import BadOffer, StepKeys, add_mask, pair_sign, public_bytes
from dpfed.federation.secure.shares import SECRET_BYTES, split, threshold

_NONCE = 12


@dataclass(frozen=True)
class Offer:
    """What a site sends before a step.

    Attributes:
        public: 64 bytes for the server: the round public key and the check value of the self mask's seed.
        ciphertexts: for each other site, by its number: the round public key and one share of each secret, encrypted for it.
    """

    public: bytes
    ciphertexts: dict[int, bytes]


@dataclass(frozen=True)
class _Shares:
    """What a site holds of another site's (or its own) two secrets. Both leave together never."""

    of_seed: bytes = field(repr=False)
    of_key: bytes = field(repr=False)


@dataclass(frozen=True)
class _Offered:
    step: int
    key: X25519PrivateKey = field(repr=False)
    seed: bytes = field(repr=False)
    own: _Shares = field(repr=False)
    offer: Offer = field(repr=False)


@dataclass
class _Masked:
    step: int
    shares: dict[int, _Shares] = field(repr=False)  # by member of the roster; empty once revealed
    arrived: frozenset[int] | None = None
    revealed: dict[int, bytes] = field(default_factory=dict, repr=False)


class Masking:
    """One site in one run. Its secrets live in this object only: a site that restarts has dropped out of the step.

    After a restart the caller must not let a step be masked that was masked before: the site's ledger refuses it.

    Args:
        me: number of this site.
        identity: its long-term private key.
        peers: long-term public keys of all other sites, 32 bytes each, by number, from terms that this site has verified.
        tolerated: t, see `threshold`.
        context: fingerprint of the run's agreed terms.

    Raises:
        UserError: if the sites are not numbered 0 .. n - 1 without gaps, or `tolerated` is too large.
    """

    def __init__(self, me: int, identity: X25519PrivateKey, peers: dict[int, bytes], tolerated: int, context: bytes) -> None:
        self._sites = len(peers) + 1
        if {me, *peers} != set(range(self._sites)):
            raise UserError(f"sites are numbered from 0 to {self._sites - 1}; got this site as {me}, and {sorted(peers)}.")
        self._me, self._identity, self._peers, self._context = me, identity, dict(peers), context
        self._needed = threshold(self._sites, tolerated)
        self._last = -1  # latest step that was offered
        self._offered: _Offered | None = None
        self._masked: _Masked | None = None

    def __repr__(self) -> str:
        return f"Masking(site {self._me} of {self._sites})"

    def offer(self, step: int) -> Offer:
        """Draws this site's secrets of a step and shares them out.

        The offers of step s + 1 may be made while step s is not revealed yet. Secrets of an earlier offer that was never
        masked are forgotten. Asked again for the same step, the same offer is returned.

        Raises:
            UserError: if the step is not later than those offered before.
        """
        if self._offered is not None and self._offered.step == step:
            return self._offered.offer
        if step <= self._last:
            raise UserError(f"step {step} cannot be offered: site {self._me} was at step {self._last} already.")
        key, seed = X25519PrivateKey.generate(), os.urandom(SECRET_BYTES)
        of_seed = split(seed, self._needed, self._sites)
        of_key = split(key.private_bytes_raw(), self._needed, self._sites)
        keys, public = StepKeys(self._context, step), public_bytes(key)
        ciphertexts = {}
        for peer, identity in self._peers.items():
            # The key is fresh for each step and direction; the random nonce keeps it safe when a restarted site offers again.
            nonce = os.urandom(_NONCE)
            cipher = ChaCha20Poly1305(keys.envelope(self._identity, identity, self._me, peer))
            text = public + of_seed[peer] + of_key[peer]
            ciphertexts[peer] = nonce + cipher.encrypt(nonce, text, keys.label("offer", self._me, peer))
        offer = Offer(public + keys.self_check(seed, self._me), ciphertexts)
        self._last = step
        self._offered = _Offered(step, key, seed, _Shares(of_seed[self._me], of_key[self._me]), offer)
        return offer

    def mask(self, step: int, values: np.ndarray, offers: dict[int, bytes]) -> np.ndarray:
        """Masks this site's vector, once.

        Args:
            step: that was offered last.
            values: ``(P,)`` uint32, see `Grid.encode`; left as it is.
            offers: the ciphertexts for this site, by sender. They and this site are the step's roster.

        Returns:
            ``(P,)`` uint32, uniformly distributed to anyone who does not hold the step's secrets.

        Raises:
            UserError: if the step was masked before or not offered, the roster is too small, or an offer was not made for
                this site, step and run by the one it is said to be from. Then nothing is masked and the step can be tried
                again.
        """
        if values.dtype != np.uint32 or values.ndim != 1:
            raise ValueError(f"expected a (P,) uint32 vector, got {values.shape} {values.dtype}")
        offered = self._offered
        if offered is None or offered.step != step:
            raise UserError(
                f"step {step} cannot be masked: site {self._me} masked it before, or holds no offer of its own for it."
            )
        if len(offers) + 1 < self._needed:
            raise UserError(f"step {step}: offers of {len(offers) + 1} sites, at least {self._needed} are needed.")
        keys, shares, pair_keys = StepKeys(self._context, step), {self._me: offered.own}, {}
        for sender, ciphertext in offers.items():
            public, shares[sender] = self._open(keys, sender, ciphertext)
            pair_keys[sender] = keys.pair_mask(offered.key, public, self._me, sender)
        self._offered, self._masked = None, _Masked(step, shares)
        masked = values.copy()
        add_mask(masked, keys.self_mask(offered.seed, self._me), +1)
        for sender, key in pair_keys.items():
            add_mask(masked, key, pair_sign(self._me, sender))
        return masked

    def reveal(self, step: int, arrived: Iterable[int]) -> dict[int, bytes]:
        """Hands out what the server needs to take the remaining masks away: one share for each member of the roster.

        For a site that arrived it is the share of its self mask's seed, for one that did not the share of its round key.
        Never both: together they would open that site's vector.

        Args:
            step: that was masked last.
            arrived: the sites whose masked vectors are in the sum.

        Returns:
            32 bytes for each member of the roster. The same again if asked again.

        Raises:
            UserError: if the step is not the one masked last, another set was revealed before, fewer sites arrived than the
                threshold, or one that is not in the roster.
        """
        masked, arrived = self._masked, frozenset(arrived)
        if masked is None or masked.step != step:
            raise UserError(f"step {step} cannot be revealed: site {self._me} did not mask it, or has gone on to a later step.")
        if masked.arrived is not None:
            if masked.arrived != arrived:
                raise UserError(f"step {step}: shares were revealed for another set of sites before; a second set is refused.")
            return dict(masked.revealed)
        if strangers := sorted(arrived - masked.shares.keys()):
            raise UserError(f"step {step}: sites {strangers} are said to have arrived, but are not in the step's roster.")
        if len(arrived) < self._needed:
            raise UserError(
                f"step {step}: {len(arrived)} sites arrived, at least {self._needed} are needed; nothing is revealed."
            )
        masked.arrived = arrived
        masked.revealed = {site: own.of_seed if site in arrived else own.of_key for site, own in masked.shares.items()}
        masked.shares = {}
        return dict(masked.revealed)

    def _open(self, keys: StepKeys, sender: int, ciphertext: bytes) -> tuple[bytes, _Shares]:
        if sender not in self._peers:
            raise BadOffer(f"step {keys.step}: an offer of site {sender}, which is not another site of this run.", sender)
        cipher = ChaCha20Poly1305(keys.envelope(self._identity, self._peers[sender], sender, self._me))
        try:
            text = cipher.decrypt(ciphertext[:_NONCE], ciphertext[_NONCE:], keys.label("offer", sender, self._me))
        except (InvalidTag, ValueError):
            text = b""
        if len(text) != 3 * SECRET_BYTES:
            raise BadOffer(
                f"step {keys.step}: the offer of site {sender} was changed on its way, or made for another site, step or run.",
                sender,
            )
        public, of_seed, of_key = (text[start : start + SECRET_BYTES] for start in range(0, len(text), SECRET_BYTES))
        return public, _Shares(of_seed, of_key)
