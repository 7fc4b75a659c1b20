"""Released statistics: noisy statistics of the batch, then one clipped gradient per record (DPCL's intention, made sound).

In each step the worker releases noisy statistics: embeddings in M slots for InfoNCE, moments for Barlow Twins. A record's
gradient depends on the other records only through these statistics. Given the statistics, a record's loss depends on that
record alone; its gradient is clipped to C.

**Sensitivity of the release.** For slots it is sqrt(2): an additional record adds its two embeddings u and v, each of at most
unit length, to one slot. For moments it is sqrt(5): the record adds a vector phi with ``|phi|^2 = |u|^2 + |v|^2 + |u*u|^2 +
|v*v|^2 + |u|^2 |v|^2 <= 5``. **Sensitivity of the sum, given the release.** It is C: the record adds one clipped gradient and
changes no other; the engine embeds one record at a time, so this holds bit by bit. The batch has no cap, because under a cap a
record could displace another one, and so change the contributions of two records.

**Release and sum together** are dominated by ``Poisson(q, Gaussian(sigma))``. Let x be the additional record. Fix all draws
except the noise and whether x is drawn (the bit b = 1); none depends on x. With D1 and D2 the sensitivities of release and sum,
and Z1 and Z2 standard normal, release and sum are ``Y1 = s + b d + D1 s1 Z1`` with ``|d| <= D1`` and ``Y2 = g(Y1) + b e(Y1) +
D2 s2 Z2`` with ``|e(y)| <= D2`` for every y, where ``s1 = sigma / sqrt(share)``, ``s2 = sigma / sqrt(1 - share)`` with share =
`release_share`, the fraction of 1 / sigma^2 that the release gets, so ``1/s1^2 + 1/s2^2 = 1/sigma^2``. A randomised map T that
does not know b turns ``W ~ N(b / sigma, 1)`` into (Y1, Y2):

- Draw ``V ~ N(0, 1)`` and rotate (W, V) by the rotation with first column ``(sigma/s1, sigma/s2)``: two *independent* numbers
  U1, U2 of means ``b/s1``, ``b/s2`` and variance 1.
- From U1 make Y1: along ``d / |d|`` put ``s + D1 s1 (c U1 + sqrt(1 - c^2) V')`` with ``c = |d| / D1`` and fresh ``V' ~ N(0,
  1)``; in all other directions fresh noise. Now y = Y1 is known, and with it g(y) and e(y): make Y2 from U2 in the same way.

Without x the output is ``T(N(0, 1))``, with x it is ``(1-q) T(N(0, 1)) + q T(N(1/sigma, 1))``, and randomised maps take
mixtures to mixtures. So T maps the two distributions that the accounting compares to the distributions of the output without x
and with x. Steps compose adaptively. x is drawn *once* for both releases: accounting for each release with a sample of its own
would give no bound, because the first release may reveal that x was drawn.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from dpfed.errors import UserError
from dpfed.privacy.method import Method, MethodInputs
from dpfed.privacy.parameters import MechanismParameters
from dpfed.schema.section import Section


class _Moments(Section):
    release_share: float = Field(0.5, gt=0, lt=1, description="fraction of a step's 1 / sigma^2 that the release gets")


class _Slots(_Moments):
    release_share: float = Field(0.2, gt=0, lt=1, description="fraction of a step's 1 / sigma^2 that the release gets")
    slots: int = Field(
        64, ge=2, description="M: number of slots; the embeddings of a record are added to one slot, and noise to all slots"
    )


def _numbers(inputs: MethodInputs) -> dict[str, Any]:
    refuse_augmentations(inputs)
    options: _Moments = inputs.options
    return options.model_dump()


def refuse_augmentations(inputs: MethodInputs) -> None:
    """Refuses augmentations beyond the two views of a record that are contrasted: they would have no effect.

    Raises:
        UserError: If the configuration has further augmentations.
    """
    if further := getattr(inputs.loss_options, "augmentations", 0):
        raise UserError(
            f"bounding.method = '{inputs.method}' contrasts two views of a record: set objective.augmentations to 0, "
            f"got {further}. [baseline-augmentations]"
        )


def release_multiplier(given: MechanismParameters) -> float:
    """Returns the standard deviation of the release's noise, divided by the release's sensitivity."""
    return given.noise_multiplier / math.sqrt(given.options["release_share"])


METHOD = Method(
    name="released",
    title="released statistics (DPCL, made sound)",
    claim="Noisy statistics of the batch are released first; given them, each record's gradient depends on that record "
    "alone, and is clipped: one record moves the sum by at most C. Release and sum are accounted for together.",
    sensitivity=lambda given: given.clip_norm,
    spread=lambda given: 2 * given.batch + 100,  # a Poisson batch has more records once in 10^60
    whole_batch=True,
    divisor=lambda given: given.batch,
    gradient_share=lambda given: 1 - given.options["release_share"],
    options={"infonce": _Slots, "barlow_twins": _Moments},  # slots stay noisy with any fraction, so gradients get more
    public_parameters=_numbers,
)
