"""Who is needed for a secure sum, and who shares masks with whom."""

from __future__ import annotations

from dataclasses import dataclass

from dpfed.errors import UserError

_PARTNERS = 128  # up to one more site than this, every two of them share a mask


@dataclass(frozen=True)
class Parties:
    """The sites of a run, numbered from 0.

    Attributes:
        sites: n.
        drops: d, sites that may drop out of a step.
        colluders: c, sites that may share all they know with the server.

    Raises:
        UserError: if there are fewer than two sites, or 2d >= n: those that drop out could be a federation of their own.

    >>> Parties(10, 3, 1).needed
    7
    """

    sites: int
    drops: int
    colluders: int

    def __post_init__(self) -> None:
        if self.sites < 2:
            raise UserError(f"secure aggregation hides a site among others: it needs at least 2 sites, got {self.sites}.")
        if self.drops < 0 or 2 * self.drops >= self.sites:
            raise UserError(
                f"{self.drops} of {self.sites} sites cannot be tolerated to drop out: fewer than half can, "
                f"here 0 to {(self.sites - 1) // 2}."
            )

    @property
    def needed(self) -> int:
        """h = n - d: how many sites must arrive, how many shares give a secret, and how many sites must agree."""
        return self.sites - self.drops

    @property
    def links(self) -> int:
        """With how many others a site shares masks; so many sites must be taken away before the rest falls apart."""
        enough = 2 * -(-max(self.colluders + self.drops + 1, _PARTNERS) // 2)
        return min(enough, self.sites - 1)

    def partners(self, site: int) -> set[int]:
        """The sites with which one shares masks: all others, or in a large federation its neighbours on a circle."""
        if self.links == self.sites - 1:
            return set(range(self.sites)) - {site}
        return {(site + way * step) % self.sites for step in range(1, self.links // 2 + 1) for way in (1, -1)}
