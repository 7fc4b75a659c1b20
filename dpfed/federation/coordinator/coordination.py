"""What the coordinator of a federation does, whatever carries its messages."""

from __future__ import annotations

from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.federation.coordinator.arrivals import Arrivals
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.coordinator.journal import Journal
from dpfed.federation.coordinator.members import Channel
from dpfed.federation.coordinator.rounds import Federation
from dpfed.federation.protocol.terms import Terms
from dpfed.privacy.ledger import Ledger
from dpfed.progress import Watcher
from dpfed.runs.job import Job, begin, take_up
from dpfed.runs.preflight import Preflight
from dpfed.runs.running import run_job

_ENDING = 10.0  # seconds that a server of before may still hold the run


def coordinate(folder: Path, place: Path, channel: Channel, watcher: Watcher) -> RunDirectory:
    """Begins a federation's run, or goes on with it.

    Args:
        folder: of the coordinator.
        place: the run's directory.
        channel: reaches the sites.
        watcher: sees the stages.

    Returns:
        The finished run.

    Raises:
        UserError: for what the operator can mend.
    """
    party = CoordinatorFolder.open(folder)
    terms, identity = Terms.load(party.terms), party.identity()

    def connect(job: Job) -> Federation:
        journal, paid, arrivals = Journal(job.run.journal), Ledger.open(job.run.ledger), Arrivals(job.run.arrivals)
        model, note = job.parts.model, watcher.note
        return Federation(terms, identity, channel, model, journal, paid, note, arrivals=arrivals, left=party.left)

    if RunDirectory.unused(place):
        RunDirectory.refuse_unusable(place)
        job = begin(Preflight(party.config(), place), watcher, terms=terms)  # the terms hold the plan
    else:
        run = RunDirectory.open(place)
        run.refuse_other_terms(terms.text)
        if run.finished:
            run.forget_key()
            return run
        job = take_up(run, watcher, terms=terms)
    with job.run.locked(_ENDING):
        return run_job(job, watcher, connect)
