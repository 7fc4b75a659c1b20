"""The Flower ServerApp: the coordinator of a federation. It carries out a run like any other, with another transport.

Also here: what the coordinator of a federation does, whatever carries its messages.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dpfed.artifacts.directory import RunDirectory
from dpfed.console import logs
from dpfed.console.terminal import console, show_run, watching
from dpfed.errors import UserError
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.coordinator.members import Channel
from dpfed.federation.coordinator.rounds import Federation
from dpfed.federation.flower.channel import FlowerChannel
from dpfed.privacy.ledger import Ledger
from dpfed.progress import Progress
from dpfed.protocol.journal import ArrivalLog, Journal
from dpfed.protocol.terms import Terms
from dpfed.runs.job import Job, create_job, resume_job
from dpfed.runs.preflight import Preflight
from dpfed.runs.running import run_job

_ENDING = 10.0  # seconds that a previous server may still hold the run


def coordinate(folder: Path, path: Path, channel: Channel, progress: Progress) -> RunDirectory:
    """Begins a federation's run, or resumes it.

    Args:
        folder: of the coordinator.
        path: the run's directory.
        channel: reaches the sites.
        progress: sees the stages.

    Returns:
        The finished run.

    Raises:
        UserError: for what the operator can fix.
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


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains with the sites of a federation; `run` resumes where it was if it is there.

    Run-config keys: ``federation``, the coordinator's folder (`dpfed federation provision`), and ``run``, the run's directory;
    both absolute, on the machine of the SuperLink.
    """
    try:
        given = {name: str(context.run_config.get(name, "")) for name in ("federation", "run")}
        for name, value in given.items():
            if not Path(value).is_absolute():
                raise UserError(f"run-config {name} = {value!r}: give an absolute path on the SuperLink's host. [flower-path]")
        logs.set_up()  # as DPFED_LOG_FORMAT says
        with watching() as progress:
            run = coordinate(Path(given["federation"]), Path(given["run"]), FlowerChannel(grid), progress)
        show_run(run)
    except UserError as error:
        if logs.active():
            logs.write("error", "error", text=str(error))
        else:
            console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise  # Flower marks the run as failed; a process that just ended would be missed a minute later
