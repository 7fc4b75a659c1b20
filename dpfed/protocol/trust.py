"""Trust modes: which party adds the noise, and so which parties the sites must trust.

There are n sites. Up to d of them may drop out of a step, and up to c may tell others what they know. The four modes:

- ``central``: sites send clipped sums, and the server adds the noise. The sites trust the server with their sums.
- ``distributed``: every site adds Gaussian noise of 1/(n - d - c) of the plan's variance to its own sum. A step counts if at
  least n - d sites answered. At least n - d - c of these keep their parts of the noise secret, and these parts suffice for the
  plan's noise. A single message carries less noise: `Trust.message_multiplier` says how much.
- ``secure``: every site adds the same noise as in ``distributed``, and masks its message (`dpfed.federation.secure.masking`).
  The server sees the noisy total only.
- ``local``: every site adds the plan's whole noise to its own sum, and depends on no other party.

Every site knows its own part of the noise. So with c = 1 the plan's promise holds against any single site, and with c = 0 every
site trusts all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dpfed.errors import UserError
from dpfed.privacy.noise import Noise
from dpfed.privacy.plan import PrivacyPlan

_PARTNERS = 128  # with at most one site more than this, every two sites share a mask
Mode = Literal["central", "distributed", "secure", "local"]
_SHARES = (
    "each site adds its share of the noise. A step counts if at least {least} of the {sites} sites send their sums. The noise "
    "shares of any {honest} sites together are already the planned noise. {known}"
)
_KNOWN = (
    "So the promise also holds against somebody who sees the model and knows up to {colluders} of the shares (a site knows its "
    "own). "
)
_NONE_KNOWN = "So the promise does not hold against a site, which knows its own share, or anybody who learns a share. "
_SAID = {
    "central": "central: each site sends its clipped sum; the server sees it, adds the noise once and keeps the ledger",
    "distributed": "distributed: " + _SHARES + "The server sees each site's sum, with only that site's share of the noise",
    "secure": "secure: " + _SHARES + "Each site masks its sum: the server sees the noisy total only, even if it lies",
    "local": "local: each site adds the whole noise to its own sum before anything leaves it, and trusts nobody",
}


@dataclass(frozen=True)
class Trust:
    """A trust mode, with the numbers of sites that may drop out and collude.

    Args:
        mode: Trust mode, see the module.
        sites: Number of sites, n.
        drops: Number of sites that may drop out of a step, d; default 0.
        colluders: Number of further sites that may tell others what they know, c; default 1.

    Raises:
        UserError: If a number is negative, or the mode cannot work when so many sites drop out or collude.
    """

    mode: Mode
    sites: int
    drops: int = 0
    colluders: int = 1

    def __post_init__(self) -> None:
        n, d, c = self.sites, self.drops, self.colluders
        if d < 0 or c < 0:
            raise UserError(f"drops and colluders must be numbers of sites, 0 or more; got {d} and {c}. [trust-numbers]")
        if d >= n:
            raise UserError(f"of {n} sites {d} may drop out, which leaves none: drops must be below {n}. [trust-drops]")
        if not self.shared:
            return
        if self.mode == "secure" and n < 2:
            raise UserError(f"secure aggregation hides a site among others: it needs at least 2 sites, got {n}. [trust-alone]")
        if d + c >= n:
            raise UserError(
                f"of {n} sites {d} may drop out and {c} collude, so no site is left whose noise stays secret: lower drops or "
                "colluders. [trust-colluders]"
            )
        if self.mode == "secure" and 2 * d >= n:
            raise UserError(
                f"secure sums of {n} sites, of which {c} may collude, bear at most {max(0, n - c - 1) // 2} missing sites in a "
                f"step, but drops = {d}: lower drops. [trust-secure]"
            )

        if self.mode == "secure" and 2 * d + c >= n and self.honest > 1:
            raise UserError(
                f"secure sums of {n} sites, of which {c} may collude, bear at most {max(0, n - c - 1) // 2} missing sites in a "
                f"step, but drops = {d}: a lying server could then tell different sites that different sites had answered, and "
                "so collect the shares that unmask one site's sum. Lower drops. [trust-server-lies]"
            )

    @property
    def shared(self) -> bool:
        """Whether each site adds a part of the plan's noise."""
        return self.mode in ("distributed", "secure")

    @property
    def least(self) -> int:
        """Number of sites that must answer a step. If fewer answer, the step is discarded.

        In secure sums, the same number of sites must also agree on which sums have arrived, and hand out their secret shares.
        """
        return self.sites - self.drops if self.shared else 1

    @property
    def links(self) -> int:
        """Number of other sites with which a site shares masks.

        If fewer sites than this number are taken away, the masks still connect all the others, directly or through other sites.
        """
        enough = 2 * -(-max(self.colluders + self.drops + 1, _PARTNERS) // 2)
        return min(enough, self.sites - 1)

    def partners(self, site: int) -> set[int]:
        """Returns the sites with which a site shares masks: all others, or in a large federation its neighbours on a circle."""
        if self.links == self.sites - 1:
            return set(range(self.sites)) - {site}
        return {(site + way * step) % self.sites for step in range(1, self.links // 2 + 1) for way in (1, -1)}

    @property
    def honest(self) -> int:
        """Number of sites whose parts of the noise together suffice for the plan's noise, if sites add parts (see `shared`)."""
        return self.least - self.colluders

    def noise_of_site(self, plan: PrivacyPlan) -> Noise | None:
        """Returns the noise that each site adds to its own sum; ``None``: it adds none."""
        if self.mode == "central" or not plan.private:
            return None
        return plan.noise_of(self.honest) if self.shared else plan.noise_of()

    def share_std(self, plan: PrivacyPlan) -> float:
        """Returns the standard deviation of the noise that each site adds to each coordinate of its sum; 0 if it adds none."""
        noise = self.noise_of_site(plan)
        return noise.std if noise else 0.0

    def carried_std(self, plan: PrivacyPlan, arrived: int) -> float:
        """Returns the standard deviation of the noise that sites added to the sum over `arrived` sites; 0 if they add none."""
        return self.share_std(plan) * math.sqrt(arrived)

    def noise_if_honest(self, confirmed: int) -> float:
        """Returns the part of the plan's noise variance that stays secret if only a given number of sites are honest.

        The server and all sites that are not honest are assumed to collude.

        Args:
            confirmed: Number of honest sites, including the site for which the question is asked.

        Returns:
            The fraction of the variance; if it is 1 or more, the plan's promise holds. In the modes ``central``, in which the
            sites trust the server, and ``local``, it is always 1.
        """
        others = self.sites - confirmed
        if not self.shared or others <= self.colluders:
            return 1.0
        # Enough honest sites agree on one list of arrivals, and masks connect them without the others: their noise adds up.
        together = self.mode == "secure" and self.sites > 2 * self.drops + others
        if together and (self.links == self.sites - 1 or others + self.drops < self.links):
            return max(1, confirmed - self.drops) / self.honest
        return 1 / self.honest

    def message_multiplier(self, plan: PrivacyPlan) -> float:
        """Returns the noise multiplier of what the server sees of one site: standard deviation of the noise over sensitivity.

        It is infinite if the server sees only the total, and 0 if sites add no noise.
        """
        if self.mode == "secure":
            return math.inf
        return self.share_std(plan) / plan.sensitivity

    def __str__(self) -> str:
        known = _KNOWN.format(colluders=self.colluders) if self.colluders else _NONE_KNOWN
        return _SAID[self.mode].format(sites=self.sites, least=self.least, honest=self.honest, known=known)
