"""The public numbers of a mechanism, as the arithmetic of a method takes them: a value that knows nothing of plans or files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class MechanismParameters:
    """What sensitivity, divisor and accounting follow from. All of it is public.

    Attributes:
        records: N, training records (or units).
        batch: B, expected records (or units) in a step.
        steps: T.
        groups: K, fixed in advance; 1 where the batch is one group.
        clip_norm: C, the largest L2 norm of what is clipped.
        noise_multiplier: sigma, the noise's standard deviation over the sum's sensitivity.
        max_batch: b, at most so many of the drawn records take part; ``None``: the method has no such cap.
        options: the method's own public numbers.
    """

    records: int
    batch: int
    steps: int
    groups: int
    clip_norm: float
    noise_multiplier: float
    max_batch: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """q = B/N, the probability of each record (or unit) to take part in a step."""
        return self.batch / self.records

    @property
    def cap(self) -> int:
        """b, of a method that has it."""
        if self.max_batch is None:
            raise ValueError("the method caps no batch")
        return self.max_batch
