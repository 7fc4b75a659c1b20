"""What a federation adds to the papers of its run: the one thing that runs ask of this room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed.federation.coordinator.journal import Journal
from dpfed.federation.protocol.statement import of_federation
from dpfed.federation.protocol.terms import Terms

if TYPE_CHECKING:
    from dpfed.artifacts.directory import RunDirectory
    from dpfed.report.facts import CardFacts


def terms_of(run: RunDirectory) -> Terms | None:
    """The terms of the federation that a run is for, if it is for one."""
    return Terms.load(run.terms) if run.terms.is_file() else None


def facts_of_federation(facts: CardFacts, run: RunDirectory, terms: Terms) -> CardFacts:
    """The facts of a run's card, with what its federation adds to them.

    Args:
        facts: of the run.
        run: its directory, with the federation's journal.
        terms: of the federation.
    """
    return of_federation(facts, terms, Journal(run.journal), run.simulation.is_file())
