"""Who somebody is in a federation: one key to sign with, one to agree on secrets with."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpfed.errors import UserError
from dpfed.files.atomic import create_atomically
from dpfed.files.reading import read_bytes

_SECRET_BYTES = 32


class Identity:
    """A party's long-term keys, both derived from one secret.

    Args:
        secret: 32 bytes.

    Attributes:
        exchange: private key for agreeing on secrets with other sites (X25519).
        signing_key: public, hex: others check signatures with it (Ed25519).
        exchange_key: public, hex.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._signing = Ed25519PrivateKey.from_private_bytes(_derived(secret, b"sign"))
        self.exchange = X25519PrivateKey.from_private_bytes(_derived(secret, b"exchange"))
        self.signing_key = self._signing.public_key().public_bytes_raw().hex()
        self.exchange_key = self.exchange.public_key().public_bytes_raw().hex()

    @classmethod
    def fresh(cls) -> Identity:
        """New keys from the operating system's randomness."""
        return cls(os.urandom(_SECRET_BYTES))

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Reads a key file.

        Raises:
            UserError: if it is not there, or is none.
        """
        try:
            secret = read_bytes(path)
        except OSError as error:
            raise UserError(f"cannot read the key {path}: {error.strerror or error}. [key-unread]") from error
        if len(secret) != _SECRET_BYTES:
            raise UserError(f"{path} is not a key: expected {_SECRET_BYTES} bytes, got {len(secret)}. [key-format]")
        return cls(secret)

    def save(self, path: Path) -> None:
        """Writes a key file that only its owner can read, whole or not at all. It never replaces one.

        Raises:
            FileExistsError: if it is there.
        """
        create_atomically(path, self._secret, mode=0o600)

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes."""
        return self._signing.sign(content)

    def __repr__(self) -> str:
        return f"Identity({self.signing_key[:8]}...)"


def is_signed(content: bytes, signature: bytes, signing_key: str) -> bool:
    """Whether the owner of a public signing key (hex) has signed the content."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(signing_key)).verify(signature, content)
    except InvalidSignature:
        return False
    return True


def is_exchange_key(exchange_key: str) -> bool:
    """Whether secrets can be agreed on with a public key (hex); with a few keys everybody would get zeros."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(exchange_key)))
    except ValueError:
        return False
    return True


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), _SECRET_BYTES, salt=None, info=b"dpfed identity " + purpose).derive(secret)
