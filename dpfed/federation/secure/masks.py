"""The keys of one step of secure aggregation, and the pseudorandom streams of ring elements that serve as masks.

Sites and server derive keys and masks by the same functions, so the server can remove a mask that a site added. Every key is
bound to the run, the step, its purpose and its sites, and generates one stream only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpfed.errors import UserError

_CHUNK = 1 << 14  # ring elements at a time: 64 KB of stream stay in the processor's cache until they are added
_ZEROS = memoryview(bytes(4 * _CHUNK))


class BadOffer(UserError):
    """Raised for an offer that its stated sender did not make for this site, step and run.

    Args:
        message: Message for the site's operator.
        sender: Number of the stated sender.
    """

    def __init__(self, message: str, sender: int) -> None:
        super().__init__(message)
        self.sender = sender


@dataclass(frozen=True)
class StepKeys:
    """Derives the keys of one step, 32 bytes each.

    Attributes:
        context: Fingerprint of the run's agreed terms; the same at all sites and the server.
        step: Training step.
    """

    context: bytes
    step: int

    def label(self, purpose: str, *sites: int) -> bytes:
        """Encodes the purpose of a key or a ciphertext as bytes that no other purpose, step, run or order of sites shares."""
        parts = [purpose.encode(), self.context, *(number.to_bytes(8, "big") for number in (self.step, *sites))]
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)

    def envelope(self, secret: bytes, sender: int, receiver: int) -> bytes:
        """Derives the key under which `sender` encrypts its offer for `receiver`; either of them can derive it.

        Args:
            secret: Secret on which the two agree by their long-term keys, see `agreed`.
            sender: Number of the sending site.
            receiver: Number of the receiving site.
        """
        return _derive(secret, self.label("offer", sender, receiver))

    def self_mask(self, seed: bytes, site: int) -> bytes:
        """Derives the key of a site's self mask from the seed that the site draws for it. No other site subtracts this mask."""
        return _derive(seed, self.label("self mask", site))

    def self_check(self, seed: bytes, site: int) -> bytes:
        """Derives the 32 bytes by which a reconstructed seed is recognised; they reveal nothing about the mask."""
        return _derive(seed, self.label("self check", site))

    def pair_mask(self, private: X25519PrivateKey, public: bytes, one: int, other: int) -> bytes:
        """Derives the key of the mask that two sites share.

        Args:
            private: Round private key of either site.
            public: Round public key of the other site.
            one: Number of a site.
            other: Number of the other site; the order does not matter.
        """
        return _derive(agreed(private, public, "round"), self.label("pair mask", min(one, other), max(one, other)))


def pair_sign(site: int, other: int) -> int:
    """Returns the sign of a shared mask at `site`: the lower number adds the mask (+1), the higher one subtracts it (-1)."""
    return 1 if site < other else -1


def add_mask(values: np.ndarray, key: bytes, sign: int) -> None:
    """Adds a mask to ring elements in place: the AES-256 stream of a key (counter mode, from 0), read as little-endian words.

    Args:
        values: Ring elements, shape ``(P,)``, uint32; additions wrap at 2^32.
        key: Key of 32 bytes, used for this stream only (which is why the nonce can be zero).
        sign: Sign of the mask: +1 to add, -1 to subtract.
    """
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor()
    words = np.empty(_CHUNK, "<u4")
    combine = np.add if sign > 0 else np.subtract
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK]
        stream.update_into(_ZEROS[: 4 * len(part)], words.data.cast("B"))
        combine(part, words[: len(part)], out=part)


def public_bytes(private: X25519PrivateKey) -> bytes:
    """Returns the public half of a key, 32 bytes."""
    return private.public_key().public_bytes_raw()


def agreed(private: X25519PrivateKey, public: bytes, which: str) -> bytes:
    """Returns the shared secret of two keys, 32 bytes, the same from either side.

    Args:
        private: Private key of one party.
        public: Public key of the other party, 32 bytes.
        which: Purpose of the public key, for the error message.

    Raises:
        UserError: If the public key is not valid.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # wrong length, or a point that gives the same secret to everybody
        raise UserError(
            f"a site's {which} public key is not a valid X25519 key, so no secret can be agreed on with that site: the site's "
            "dpfed is damaged or was altered. [key-exchange]"
        ) from None


def _derive(secret: bytes, label: bytes) -> bytes:
    return HKDF(SHA256(), length=32, salt=None, info=label).derive(secret)
