"""Between which data sets a promise holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it takes a second to import
    import dp_accounting


@dataclass(frozen=True)
class Relation:
    """Which two data sets are neighbours: they differ in one record, or in one unit with all its records.

    Args:
        verb: what happens to it, such as ``add or remove``.
        known: the name that dp_accounting has for this relation.
    """

    verb: str
    known: str

    @property
    def of_accountants(self) -> dp_accounting.NeighboringRelation:
        """As accountants want it."""
        import dp_accounting

        return dp_accounting.NeighboringRelation[self.known]

    def describe(self, protected: str, unit: bool) -> str:
        """For the privacy card.

        Args:
            protected: what one of them is called, such as ``record`` or ``patient``.
            unit: whether all records that share one come and go together.
        """
        return f"{self.verb} one {protected}" + (" with all its records" if unit else "")


ADD_OR_REMOVE = Relation("add or remove", "ADD_OR_REMOVE_ONE")
REPLACE = Relation("replace", "REPLACE_ONE")
