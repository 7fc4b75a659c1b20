"""What a site sends to another one through the server, for that one's eyes: a round public key beside encrypted shares.

Also here: what sites sign about a step, so that a server cannot tell them different stories.

Two statements: with which roster a site masked its vector, and which members it was told have arrived. A site signs at most one
of each in a step. docs/secure-aggregation.md says why enough of them leave a lying server one story only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpfed.federation.secure.masks import BadOffer, StepKeys, agreed
from dpfed.federation.secure.shares import SECRET_BYTES
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.identity import Identity
from dpfed.protocol.trust import Trust

KEY_BYTES = 32  # of a round public key
_NONCE, _TAG = 12, 16


def offer_lengths(trust: Trust) -> tuple[int, int]:
    """Bytes of what a site offers in a step to the server, and to each other site."""
    secrets, check = (2 * SECRET_BYTES, SECRET_BYTES) if trust.drops else (0, 0)
    return KEY_BYTES + check, KEY_BYTES + _NONCE + secrets + _TAG


class Envelopes:
    """Seals what one site sends to the others, and opens what they send to it.

    Args:
        me: number of this site.
        identity: its long-term keys.
        sites: long-term public keys of all sites, in the order of their numbers.
        length: bytes of an envelope.
    """

    def __init__(self, me: int, identity: Identity, sites: Sequence[SiteCard], length: int) -> None:
        self._me = me
        self._identity = identity
        self._sites = list(sites)
        self._length = length
        self._agreed: dict[int, bytes] = {}  # with each other site, for the whole run

    def seal(self, keys: StepKeys, receiver: int, public: bytes, text: bytes) -> bytes:
        """An envelope: the round public key, which cannot be changed unnoticed, and the encrypted text.

        The key is fresh for each step and direction; the random nonce keeps it safe when a restarted site offers again.
        """
        nonce = os.urandom(_NONCE)
        cipher = self._cipher(keys, self._me, receiver, receiver)
        return public + nonce + cipher.encrypt(nonce, text, keys.label("offer", self._me, receiver) + public)

    def open(self, keys: StepKeys, sender: int, envelope: bytes) -> tuple[bytes, bytes]:
        """The round public key and the text of an envelope.

        Raises:
            BadOffer: if it was not made for this site, step and run by its stated sender.
        """
        if sender == self._me or not 0 <= sender < len(self._sites):
            raise BadOffer(f"step {keys.step}: an offer of site {sender}, which is not another site. [mask-sender]", sender)
        public, nonce = envelope[:KEY_BYTES], envelope[KEY_BYTES : KEY_BYTES + _NONCE]
        try:
            if len(envelope) != self._length:
                raise InvalidTag
            cipher = self._cipher(keys, sender, self._me, sender)
            bound = keys.label("offer", sender, self._me) + public
            return public, cipher.decrypt(nonce, envelope[KEY_BYTES + _NONCE :], bound)
        except InvalidTag:
            raise BadOffer(
                f"step {keys.step}: the offer of site {sender} was altered, or is for another site, step or run. [mask-offer]",
                sender,
            ) from None

    def _cipher(self, keys: StepKeys, sender: int, receiver: int, other: int) -> ChaCha20Poly1305:
        if other not in self._agreed:
            theirs = bytes.fromhex(self._sites[other].exchange_key)
            self._agreed[other] = agreed(self._identity.exchange, theirs, "long-term")
        return ChaCha20Poly1305(keys.envelope(self._agreed[other], sender, receiver))


_ROSTER, _ARRIVALS = b"dpfed roster 2\0", b"dpfed arrivals 2\0"  # a signature for one purpose fits no other


class View:
    """What a step looks like to somebody: its roster, each member with its round key.

    Args:
        keys: of the step.
        public: round public key of each member, 32 bytes, by number.
    """

    def __init__(self, keys: StepKeys, public: dict[int, bytes]) -> None:
        self._keys, self.members = keys, frozenset(public)
        numbers = sorted(public)
        content = keys.label("roster", *numbers) + b"".join(public[number] for number in numbers)
        self._digest = hashlib.sha256(content).digest()

    def roster(self) -> bytes:
        """The statement that a vector was masked for this roster."""
        return _ROSTER + self._digest

    def arrival_log(self, arrived: frozenset[int]) -> bytes:
        """The statement that these members of the roster have arrived, and no others."""
        return _ARRIVALS + hashlib.sha256(self._keys.label("arrivals", *sorted(arrived)) + self._digest).digest()
