"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How it stands."""

    GOOD = "good"
    CARE = "care"  # it works, and wants attention
    UNKNOWN = "unknown"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        about: what.
        state: how it stands.
        said: what was found.
        advice: what to do; empty where nothing is to be done.
    """

    about: str
    state: State
    said: str
    advice: str = ""
