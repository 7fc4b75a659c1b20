"""Encrypts, with a run's secret, content that must be on disk before it is released.

The key of the encryption is a pseudo-random function of the content. So the same content gives the same bits, different
contents have independent keys, and a changed bit is detected. Whoever reads the file without the secret learns only the length
of the content, and whether two contents are equal.

This is deterministic authenticated encryption (Rogaway and Shrimpton 2006, "A provable-security treatment of the key-wrap
problem"): HMAC-SHA256 is the pseudo-random function, and AES-256 in counter mode the cipher, with a key for each content.
"""

from __future__ import annotations

import hmac

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpfed.privacy.randomness import Randomness

_TAG = 32  # bytes of the keyed hash that precedes the content
_ROOM = 15  # spare bytes that the library requires after its output


def sealed(content: np.ndarray, randomness: Randomness, purpose: str) -> np.ndarray:
    """Encrypts content.

    Args:
        content: Bytes to encrypt, ``(n,)`` uint8.
        randomness: Secret randomness of the run, from which the keys are derived.
        purpose: Purpose of the content; content of another purpose is encrypted with other keys.

    Returns:
        The encrypted bytes, ``(n + 32,)`` uint8.
    """
    tag = _hash(content, randomness, purpose)
    out = np.empty(_TAG + len(content) + _ROOM, np.uint8)
    out[:_TAG] = np.frombuffer(tag, np.uint8)
    _crypt(content, out[_TAG:], tag, randomness, purpose)
    return out[: _TAG + len(content)]


def opened(raw: np.ndarray, randomness: Randomness, purpose: str) -> np.ndarray | None:
    """Decrypts the bytes of `sealed`.

    Args:
        raw: Encrypted bytes, ``(n + 32,)`` uint8.
        randomness: Secret randomness of the run.
        purpose: Purpose of the content, as given to `sealed`.

    Returns:
        The content, ``(n,)`` uint8; ``None`` if the bytes were truncated or changed, or encrypted with another secret or
        purpose.
    """
    if len(raw) < _TAG:
        return None
    tag, content = raw[:_TAG].tobytes(), np.empty(len(raw) - _TAG + _ROOM, np.uint8)
    _crypt(raw[_TAG:], content, tag, randomness, purpose)
    content = content[: len(raw) - _TAG]
    return content if hmac.compare_digest(tag, _hash(content, randomness, purpose)) else None


def _hash(content: np.ndarray, randomness: Randomness, purpose: str) -> bytes:
    return hmac.digest(randomness.key(f"tag of {purpose}"), content.data, "sha256")


def _crypt(content: np.ndarray, out: np.ndarray, tag: bytes, randomness: Randomness, purpose: str) -> None:
    """Encrypts or decrypts `content` into `out`, by XOR with the stream whose key follows from `tag`.

    `out` must be 15 bytes longer than the content.
    """
    key = hmac.digest(randomness.key(f"key of {purpose}"), tag, "sha256")
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    cipher.update_into(content.data, out.data)
