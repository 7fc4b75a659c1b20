"""A federation in one process, for experiments: the real protocol, with sites that share this machine's memory.

The training records of one store are divided among the sites (`dpfed.data.store.division`). Everything else is what
institutions run: the same terms, site workers, ledgers and messages; only the network is missing.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dpfed.artifacts.directory import RunDirectory
from dpfed.callbacks import Callback
from dpfed.callbacks.callback import listed
from dpfed.config import Config
from dpfed.console.library import shown
from dpfed.data.sampling import unit_keys
from dpfed.data.store.division import site_of_records
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.federation.coordinator.rounds import Federation
from dpfed.federation.simulated import Simulation
from dpfed.federation.site.worker import SiteWorker
from dpfed.files.reading import read_text
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress, Silent, import_progress
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.identity import Identity
from dpfed.protocol.journal import ArrivalLog, Journal
from dpfed.protocol.messages import Packet
from dpfed.protocol.terms import Terms
from dpfed.runs.build import record_store
from dpfed.runs.job import Job, create_job, resume_job, secret_of
from dpfed.runs.preflight import Preflight, guarded
from dpfed.runs.pretraining import resume as resume_alone
from dpfed.runs.public_basis import proposed_basis, with_basis
from dpfed.runs.records import records_of
from dpfed.runs.resolution import resolve_defaults
from dpfed.runs.running import run_job
from dpfed.runs.starts import starting_weights
from dpfed.training.learner import Partition


class InProcessChannel:
    """A `Channel` to sites in this process.

    Args:
        sites: Workers of the sites, by address.
    """

    def __init__(self, sites: dict[str, SiteWorker]) -> None:
        self._sites = sites

    def sites(self) -> list[str]:
        """Returns the addresses of all sites, see `Channel`."""
        return list(self._sites)

    def exchange(self, packets: dict[str, Packet], seconds: float, most: int) -> Iterator[tuple[str, Packet | None]]:
        """Asks the sites one after the other, see `Channel`. The limits of time and size are ignored."""
        for address, packet in packets.items():
            yield address, self._sites[address].answer(packet)


def simulate(
    config: Config, folder: str | Path, simulation: Simulation, progress: Progress | None = None, resume: bool = False
) -> RunDirectory:
    """Trains an encoder with simulated sites into a new run directory.

    Args:
        config: Configuration of the run.
        folder: Directory of the run. It must not be in use, but with `resume` it may hold the run that is continued.
        simulation: Sites to simulate.
        progress: Progress, which shows the stages of the run; default: nothing is shown.
        resume: Whether to continue a run that exists already; default: no.

    Returns:
        The finished run.

    Raises:
        UserError: If the configuration or the simulation is impossible, a site would have no records, or the folder cannot be
            used; all this is checked before the run has a directory. With `resume`, `resume_simulation`
            lists further reasons.
    """
    progress = progress or Silent()
    return run_simulation(Preflight.of(config, folder, simulation.sites, progress, resume), simulation, progress)


def run_simulation(
    preflight: Preflight, simulation: Simulation, progress: Progress, callbacks: Iterable[Callback] = ()
) -> RunDirectory:
    """Begins a run with simulated sites after its preflight, or resumes an existing run.

    Args:
        preflight: Preflight of the run.
        simulation: Sites to simulate.
        progress: Progress, which shows the stages of the run.
        callbacks: Callbacks that observe the training.

    Returns:
        The finished run.

    Raises:
        UserError: See `simulate`; also if the run in the folder has another configuration.
    """
    if preflight.there:
        run = RunDirectory.open(preflight.folder)
        run.refuse_another(resolve_defaults(preflight.config))
        return resume_simulation(run, progress, simulation, callbacks)
    simulation.refuse(preflight.config)
    config, randomness = resolve_defaults(preflight.config), secret_of(preflight.config)
    starting_weights(config)  # before records are read
    terms = _agreed(config, simulation, _identities(randomness, simulation.sites), progress)
    files = {RunDirectory.SIMULATION: simulation.model_dump_json() + "\n"}
    job = create_job(dataclasses.replace(preflight, config=config), progress, randomness, terms, files)
    with job.run.locked():
        return run_job(job, progress, lambda job: _connect(job, simulation, progress), callbacks)


def _agreed(config: Config, simulation: Simulation, parties: list[Identity], progress: Progress) -> Terms:
    """Divides the records of a resolved configuration among sites, and makes the terms for these sites."""
    progress.note("opening the records, and dividing them among the sites")
    store = records_of(config, guarded(import_progress(progress), config), say=progress.note)
    indices, units = _divided(store, simulation), unit_keys(store, config.privacy.unit)
    cards = [
        SiteCard(
            name=f"site-{number}",
            records=len(rows),
            units=None if units is None else len(np.unique(units[rows])),
            unit_name=store.unit_name,
            signing_key=identity.signing_key,
            exchange_key=identity.exchange_key,
        )
        for number, (identity, rows) in enumerate(zip(parties[1:], indices, strict=True))
    ]
    options, basis = simulation.model_dump(include={"trust", "drops", "colluders"}), proposed_basis(config, store, progress)
    text = None if basis is None else basis.text
    return Terms.agree(with_basis(config, basis), cards, parties[0].signing_key, **options, basis=text)


def resume(folder: str | Path, progress: Progress | bool | None = None, callbacks: Iterable[Callback] = ()) -> RunDirectory:
    """Resumes an interrupted run, of one process or of a simulated federation; returns a finished run as it is.

    An interrupted run with parts that were passed in Python (`Trainer`) is resumed by running the same lines again, not by this
    function.

    Args:
        folder: Directory of the run.
        progress: Progress, which shows the stages of the run; ``False``: nothing is shown; ``None`` (default): bars in
            terminals and notebooks (`shown`).
        callbacks: A `Callback`, or a list of them; a callback observes the training.

    Returns:
        The finished run.

    Raises:
        UserError: If `callbacks` holds anything but callbacks; if the folder holds no run; if the run, its ledger or its
            checkpoint is damaged; if its records have changed; if another process holds the run; if parts of the unfinished run
            were passed in Python; or if it is the run of a real federation, which only its coordinator resumes.
    """
    callbacks, run = listed(callbacks), RunDirectory.open(folder)
    with shown(progress) as seen:
        if run.simulation.is_file():
            return resume_simulation(run, seen, callbacks=callbacks)
        return resume_alone(run.path, seen, callbacks)


def resume_simulation(
    run: RunDirectory, progress: Progress, expected: Simulation | None = None, callbacks: Iterable[Callback] = ()
) -> RunDirectory:
    """Resumes a simulated federation.

    Args:
        run: Directory of the run, not locked.
        progress: Progress, which shows the stages of the run.
        expected: Simulation that the run must have; ``None``: any.
        callbacks: Callbacks that observe the training.

    Returns:
        The finished run.

    Raises:
        UserError: If the run is not a simulated federation, simulates another federation, is damaged, or is held by another
            process; or if its records have changed.
    """
    if not run.simulation.is_file():
        raise UserError(
            f"{run.path} is not a simulated federation: resume it without simulated sites. [site-not-simulated]",
            command="On the command line: leave --federated out.",
        )
    try:
        simulation = Simulation.model_validate(json.loads(read_text(run.simulation)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{run.simulation} is damaged: restore it from a copy of the run. [site-simulation-damaged]") from error
    if expected not in (None, simulation):
        raise UserError(
            f"{run.path} simulates {simulation}, but {expected} were asked for: choose another folder. [site-simulation]",
            command="On the command line: --run DIR",
        )
    with run.locked():
        if run.finished:
            run.delete_secrets()
            return run
        job = resume_job(run, progress, terms=Terms.load(run.terms))
        return run_job(job, progress, lambda job: _connect(job, simulation, progress), callbacks)


def _connect(job: Job, simulation: Simulation, progress: Progress) -> Federation:
    """Makes the sites of a simulated federation, and returns the coordinator that adds up their sums."""
    parts, terms, run = job.parts, job.parts.terms, job.run
    assert terms is not None  # `create_job` and `resume_job` were given terms
    coordinator, *parties = _identities(job.randomness, simulation.sites)
    run.sites.mkdir(exist_ok=True)
    sites = {}
    for number, indices in enumerate(_divided(record_store(parts.store), simulation)):
        path, model = run.sites / f"site-{number}.jsonl", copy.deepcopy(parts.model)
        partition = Partition(number, indices, terms.sites[number].groups)
        worker = parts.learner.worker(job.randomness.for_ranks(), partition, model)
        ledger = Ledger.open(path) if path.exists() else Ledger.create(path, parts.plan)
        ledger.require_current()
        shares = Randomness(job.randomness.key("shares", number))
        sites[f"site-{number}"] = SiteWorker(terms, parties[number], worker, model, ledger, shares, progress.note)
    channel, journal, paid = InProcessChannel(sites), Journal(run.journal), Ledger.open(run.ledger)
    arrival_log = ArrivalLog(run.arrival_log)
    return Federation(terms, coordinator, channel, parts.model, journal, paid, progress.note, arrival_log=arrival_log)


def _divided(store: RecordStore, simulation: Simulation) -> list[np.ndarray]:
    """Returns the indices of each site's training records, by site number.

    Raises:
        UserError: If a site would have no records.
    """
    indices = store.split("train")
    sites = site_of_records(store, simulation.sites, simulation.skew)[indices]
    divided = [indices[sites == number] for number in range(simulation.sites)]
    if not all(map(len, divided)):
        raise UserError(
            f"divided among {simulation.sites} sites, the records leave a site without training records: simulate fewer sites, "
            "or set a smaller skew. [site-empty]"
        )
    return divided


def _identities(randomness: Randomness, sites: int) -> list[Identity]:
    """Returns the cryptographic keys of the coordinator, then of the sites; a resumed run gets the same keys."""
    return [Identity(randomness.key("identity", party)) for party in range(sites + 1)]
