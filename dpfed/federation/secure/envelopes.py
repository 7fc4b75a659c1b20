"""The envelope that a site sends to another site through the server: a round public key and encrypted shares.

The module also has the statements that sites sign about a step, so that a server cannot tell different sites different things.

There are two kinds of statement. One names the roster for which a site masked its vector: the sites that made offers for this
step. The other names the members of the roster whose vectors have arrived, according to the server. A site signs at most one
statement of each kind in a step. If enough sites must sign, even a lying server gets enough signatures for only one
roster and one set of arrivals; docs/secure-aggregation.md explains why.
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

KEY_BYTES = 32  # length of a round public key
_NONCE, _TAG = 12, 16


def offer_lengths(trust: Trust) -> tuple[int, int]:
    """Returns the lengths in bytes of two parts of a site's offer: the server's part, and the envelope for one other site."""
    secrets, check = (2 * SECRET_BYTES, SECRET_BYTES) if trust.drops else (0, 0)
    return KEY_BYTES + check, KEY_BYTES + _NONCE + secrets + _TAG


class Envelopes:
    """Seals the envelopes that one site sends to the others, and opens those that it receives.

    Args:
        me: Number of this site.
        identity: This site's long-term keys.
        sites: Cards with the long-term public keys of all sites, in the order of the site numbers.
        length: Length of an envelope, in bytes.
    """

    def __init__(self, me: int, identity: Identity, sites: Sequence[SiteCard], length: int) -> None:
        self._me = me
        self._identity = identity
        self._sites = list(sites)
        self._length = length
        self._agreed: dict[int, bytes] = {}  # secret agreed on with each other site, for the whole run

    def seal(self, keys: StepKeys, receiver: int, public: bytes, text: bytes) -> bytes:
        """Returns an envelope: the round public key, protected against changes, and the encrypted text.

        The encryption key is fresh for each step and direction. The random nonce keeps the key safe when a restarted site makes
        an offer again.

        Args:
            keys: Keys of the step.
            receiver: Number of the receiving site.
            public: This site's round public key, 32 bytes.
            text: Bytes to encrypt.
        """
        nonce = os.urandom(_NONCE)
        cipher = self._cipher(keys, self._me, receiver, receiver)
        return public + nonce + cipher.encrypt(nonce, text, keys.label("offer", self._me, receiver) + public)

    def open(self, keys: StepKeys, sender: int, envelope: bytes) -> tuple[bytes, bytes]:
        """Returns the round public key and the text of an envelope.

        Raises:
            BadOffer: If the stated sender did not make the envelope for this site, step and run.
        """
        if sender == self._me or not 0 <= sender < len(self._sites):
            raise BadOffer(
                f"step {keys.step}: an offer names site {sender} as its sender; expected a site from 0 to "
                f"{len(self._sites) - 1} other than this site, {self._me}. [mask-sender]",
                sender,
            )
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


_ROSTER, _ARRIVALS = b"dpfed roster 2\0", b"dpfed arrivals 2\0"  # a signature for one is not valid for the other


class View:
    """What one party (a site or the server) believes about a step: the sites in its roster, and the sites' public keys.

    Two parties with different beliefs sign different statements.

    Args:
        keys: Keys of the step.
        public: Public key of each site in the roster for this step, 32 bytes, by site number.

    Attributes:
        members: Numbers of the sites in the roster.
    """

    def __init__(self, keys: StepKeys, public: dict[int, bytes]) -> None:
        self._keys, self.members = keys, frozenset(public)
        numbers = sorted(public)
        content = keys.label("roster", *numbers) + b"".join(public[number] for number in numbers)
        self._digest = hashlib.sha256(content).digest()

    def roster(self) -> bytes:
        """Returns the statement that a vector was masked for this roster, as the bytes to sign."""
        return _ROSTER + self._digest

    def arrival_log(self, arrived: frozenset[int]) -> bytes:
        """Returns the bytes to sign for the statement that the vectors of exactly these members of the roster have arrived."""
        return _ARRIVALS + hashlib.sha256(self._keys.label("arrivals", *sorted(arrived)) + self._digest).digest()
