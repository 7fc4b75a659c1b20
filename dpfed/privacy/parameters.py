"""Defines the public numbers of a mechanism, which a method's functions take; the module needs neither plans nor files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class MechanismParameters:
    """The numbers that determine a method's sensitivity, divisor and accounting. All of them are public.

    Attributes:
        records: Number of training records (or units), N.
        batch: Expected number of records (or units) in a step, B.
        steps: Number of steps, T.
        groups: Number of groups, K, fixed in advance; 1 if the whole batch is one group.
        clip_norm: Largest L2 norm of a clipped vector, C.
        noise_multiplier: Standard deviation of the noise divided by the sum's sensitivity, sigma.
        max_batch: Largest number of the drawn records that take part, b; ``None`` if the method has no such cap.
        options: Further public numbers, which belong to this method alone.
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
        """Probability that a record (or unit) takes part in a step, q = B/N."""
        return self.batch / self.records

    @property
    def cap(self) -> int:
        """Largest number of records in a batch, b, for a method that has such a cap.

        Raises:
            ValueError: If the method has no such cap.
        """
        if self.max_batch is None:
            raise ValueError("the method has no cap on the batch")
        return self.max_batch
