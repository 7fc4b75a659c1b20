"""What rank 0 may ask for, and the small messages of a step whose sum all ranks share (`dpfed.cluster.slices`)."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from dpfed.privacy.randomness import KEY_BYTES

_DIGEST_BYTES = 16
_ERRAND = struct.Struct("<Q??8s16s")
_REPORT = struct.Struct("<Bi")


class Order(enum.IntEnum):
    """What all ranks do next, together."""

    END = 0
    STEP = 1  # compute the sum of a step
    SHARE = 2  # from now on, hold a slice of each sum
    HASH = 3  # report the digests of the own slice, without noise
    NOISE = 4  # make it noisy
    KEEP = 5  # write it to disk
    REPEAT = 6  # take a kept release instead
    UPDATE = 7  # the release is paid for: use it
    STATE = 8  # bring the optimizer's state to rank 0


class Trouble(enum.IntEnum):
    """Why a rank could not do its part of an order."""

    NONE = 0
    NOT_FINITE = 1
    DISK = 2


@dataclass(frozen=True)
class Errand:
    """What one rank needs to make its slice noisy.

    Attributes:
        step: training step.
        private: whether there is noise.
        keep: whether the noisy slice goes to disk at once.
        tag: of the attempt at the step: 16 hexadecimal digits, the same for all ranks.
        clean: digest of the whole sum without noise, which keys the noise besides.
        keys: of the noise of the rank's own blocks, in order: secret, and for this rank alone.
    """

    step: int
    private: bool
    keep: bool
    tag: str
    clean: str
    keys: list[bytes]

    @staticmethod
    def length(blocks: int) -> int:
        """Bytes of a message for so many blocks, or fewer."""
        return _ERRAND.size + KEY_BYTES * blocks

    def pack(self, blocks: int) -> bytes:
        """The message, as long as one for `blocks` blocks."""
        head = _ERRAND.pack(self.step, self.private, self.keep, bytes.fromhex(self.tag), bytes.fromhex(self.clean))
        return (head + b"".join(self.keys)).ljust(self.length(blocks), b"\0")

    @classmethod
    def unpack(cls, content: bytes, blocks: int) -> Errand:
        """What `pack` made, for a rank with so many blocks."""
        step, private, keep, tag, clean = _ERRAND.unpack_from(content)
        starts = range(_ERRAND.size, _ERRAND.size + KEY_BYTES * blocks, KEY_BYTES)
        keys = [content[start : start + KEY_BYTES] for start in starts]
        return cls(step, private, keep, tag.hex(), clean.hex(), keys)


@dataclass(frozen=True)
class Report:
    """What a rank says of its slice.

    Attributes:
        digests: of its blocks.
        trouble: why there are none, or nothing was kept.
        number: of the error that the system gave, if any.
    """

    digests: list[str]
    trouble: Trouble = Trouble.NONE
    number: int = 0

    @staticmethod
    def length(blocks: int) -> int:
        """Bytes of a message for so many blocks, or fewer."""
        return _REPORT.size + _DIGEST_BYTES * blocks

    def pack(self, blocks: int) -> bytes:
        """The message, as long as one for `blocks` blocks."""
        content = _REPORT.pack(self.trouble, self.number) + b"".join(map(bytes.fromhex, self.digests))
        return content.ljust(self.length(blocks), b"\0")

    @classmethod
    def unpack(cls, content: bytes, blocks: int) -> Report:
        """What `pack` made, of a rank with so many blocks."""
        trouble, number = _REPORT.unpack_from(content)
        starts = range(_REPORT.size, _REPORT.size + _DIGEST_BYTES * blocks, _DIGEST_BYTES)
        return cls([content[start : start + _DIGEST_BYTES].hex() for start in starts], Trouble(trouble), number)
