"""What sites sign about a step, so that a server cannot tell them different stories.

Two statements: with which roster a site masked its vector, and which members it was told have arrived. A site signs at most one
of each in a step. docs/secure-aggregation.md says why enough of them leave a lying server one story only.
"""

from __future__ import annotations

import hashlib

from dpfed.federation.secure.masks import StepKeys

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

    def arrivals(self, arrived: frozenset[int]) -> bytes:
        """The statement that these members of the roster have arrived, and no others."""
        return _ARRIVALS + hashlib.sha256(self._keys.label("arrivals", *sorted(arrived)) + self._digest).digest()
