"""The identity of a party in a federation: a key to sign with, and a key to agree on secrets with."""

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
        secret: Secret of 32 bytes.

    Attributes:
        exchange: Private key for agreeing on secrets with other sites (X25519).
        signing_key: Public key with which others check signatures, hex (Ed25519).
        exchange_key: Public half of `exchange`, hex.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._signing = Ed25519PrivateKey.from_private_bytes(_derived(secret, b"sign"))
        self.exchange = X25519PrivateKey.from_private_bytes(_derived(secret, b"exchange"))
        self.signing_key = self._signing.public_key().public_bytes_raw().hex()
        self.exchange_key = self.exchange.public_key().public_bytes_raw().hex()

    @classmethod
    def fresh(cls) -> Identity:
        """Creates new keys from the operating system's randomness."""
        return cls(os.urandom(_SECRET_BYTES))

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Reads a key file.

        Raises:
            UserError: If the file cannot be read or is not a key.
        """
        try:
            secret = read_bytes(path)
        except OSError as error:
            raise UserError(f"cannot read the key {path}: {error.strerror or error}. [key-unread]") from error
        if len(secret) != _SECRET_BYTES:
            raise UserError(f"{path} is not a key: expected {_SECRET_BYTES} bytes, got {len(secret)}. [key-format]")
        return cls(secret)

    def save(self, path: Path) -> None:
        """Writes a key file that only its owner can read, whole or not at all. An existing file is never replaced.

        Raises:
            FileExistsError: If the file exists.
            OSError: If the file cannot be written.
        """
        create_atomically(path, self._secret, mode=0o600)

    def sign(self, content: bytes) -> bytes:
        """Returns the signature of the content, 64 bytes."""
        return self._signing.sign(content)

    def __repr__(self) -> str:
        return f"Identity({self.signing_key[:8]}...)"


def is_signed(content: bytes, signature: bytes, signing_key: str) -> bool:
    """Returns whether the owner of a public signing key (hex) has signed the content."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(signing_key)).verify(signature, content)
    except InvalidSignature:
        return False
    return True


def is_exchange_key(exchange_key: str) -> bool:
    """Returns whether secrets can be agreed on with a public key (hex). With a few special keys, every secret would be zero."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(exchange_key)))
    except ValueError:
        return False
    return True


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), _SECRET_BYTES, salt=None, info=b"dpfed identity " + purpose).derive(secret)
