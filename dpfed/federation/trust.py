"""Who adds the noise, and so whom the sites must trust: four modes.

With n sites, of which up to t may drop out of a step or share what they know with the server:

- ``central``: sites send clipped sums, the server adds the noise. It is trusted with the sums.
- ``distributed``: every site adds Gaussian noise of variance 1/(n - t) of the plan's to its own sum. Any n - t honest sites
  together carry at least the plan's noise, so what the server adds up is protected without its help. A single message carries
  less noise than the plan asks for; `Trust.message_multiplier` says how much.
- ``secure``: the same noise, and the messages are masked (`dpfed.federation.masking`): the server sees the noisy total only.
- ``local``: every site adds the plan's whole noise to its own sum and needs nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dpfed.errors import UserError
from dpfed.plan import PrivacyPlan

Mode = Literal["central", "distributed", "secure", "local"]
_SAID = {
    "central": "central: each site sends its clipped sum; the server sees it, adds the noise once and keeps the books",
    "distributed": "distributed: each site adds its share of the noise, so that any {least} of the {sites} sites carry all of "
    "it; the server sees each site's sum with that share only",
    "secure": "secure: each site adds its share of the noise, so that any {least} of the {sites} sites carry all of it, and "
    "masks its sum; a server that follows the protocol sees the noisy total only, also together with {tolerated} sites",
    "local": "local: each site adds the whole noise to its own sum before anything leaves it, and trusts nobody",
}


@dataclass(frozen=True)
class Trust:
    """A mode, and how many sites it can do without.

    Args:
        mode: see the module.
        sites: n.
        tolerated: t, sites that may drop out or collude.

    Raises:
        UserError: if so many cannot be tolerated.
    """

    mode: Mode
    sites: int
    tolerated: int = 0

    def __post_init__(self) -> None:
        n, t = self.sites, self.tolerated
        if not 0 <= t < n:
            raise UserError(f"of {n} sites, between 0 and {n - 1} can be tolerated to drop out, not {t}.")
        if self.mode == "secure" and 2 * t >= n:
            raise UserError(f"secure sums of {n} sites tolerate at most {(n - 1) // 2} that drop out or collude, not {t}.")

    @property
    def least(self) -> int:
        """Sites that must answer, or a step is discarded."""
        return self.sites - self.tolerated if self.mode in ("distributed", "secure") else 1

    def share_std(self, plan: PrivacyPlan) -> float:
        """Standard deviation of the noise that each site adds to each coordinate of its own sum."""
        if self.mode == "central":
            return 0.0
        return plan.noise_std if self.mode == "local" else plan.noise_std / math.sqrt(self.least)

    def carried_std(self, plan: PrivacyPlan, arrived: int) -> float:
        """Standard deviation of the noise in the sum over so many sites."""
        return self.share_std(plan) * math.sqrt(arrived)

    def message_multiplier(self, plan: PrivacyPlan) -> float:
        """Noise over sensitivity of what the server sees of one site; infinity where it sees nothing of one site."""
        if self.mode == "secure":
            return math.inf
        return self.share_std(plan) / plan.sensitivity

    def __str__(self) -> str:
        return _SAID[self.mode].format(sites=self.sites, least=self.least, tolerated=self.tolerated)
