"""The coordinator's run: like any other run, but with the sites as its transport. Any `Channel` may carry the messages."""

from __future__ import annotations

from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.coordinator.members import Channel
from dpfed.federation.coordinator.rounds import Federation
from dpfed.privacy.ledger import Ledger
from dpfed.progress import Progress
from dpfed.protocol.journal import ArrivalLog, Journal
from dpfed.protocol.terms import Terms
from dpfed.runs.job import Job, create_job, resume_job
from dpfed.runs.preflight import Preflight
from dpfed.runs.running import run_job

_ENDING = 10.0  # seconds that a previous server may still hold the run


def coordinate(folder: Path, path: Path, channel: Channel, progress: Progress) -> RunDirectory:
    """Begins a federation's run, or resumes it; returns a finished run as it is.

    Args:
        folder: Folder of the coordinator, see `CoordinatorFolder`.
        path: Directory of the run.
        channel: Connection to the sites.
        progress: Progress, which shows the stages of the run.

    Returns:
        The finished run.

    Raises:
        UserError: If the folder is not a coordinator's, if the run's directory cannot be used or belongs to other terms, if
            another process holds the run, or if the run cannot be trained; the message says what to change.
    """
    party = CoordinatorFolder.open(folder)
    terms, identity = Terms.load(party.terms), party.identity()

    def connect(job: Job) -> Federation:
        journal, paid, arrival_log = Journal(job.run.journal), Ledger.open(job.run.ledger), ArrivalLog(job.run.arrival_log)
        model, note = job.parts.model, progress.note
        return Federation(terms, identity, channel, model, journal, paid, note, arrival_log=arrival_log, left=party.left)

    if RunDirectory.unused(path):
        RunDirectory.refuse_unusable(path)
        job = create_job(Preflight(party.config(), path), progress, terms=terms)  # the terms hold the plan
    else:
        run = RunDirectory.open(path)
        run.refuse_other_terms(terms.text)
        if run.finished:
            run.delete_secrets()
            return run
        job = resume_job(run, progress, terms=terms)
    with job.run.locked(_ENDING):
        return run_job(job, progress, connect)
