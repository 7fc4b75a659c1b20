"""A run that is ready to go on: begun in a new directory, or taken up from one that is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import began, environment
from dpfed.config import Config
from dpfed.config.effects import refuse_unmeasured, refuse_without_effect
from dpfed.errors import UserError
from dpfed.evaluation.tasks import tasks_of
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Watcher
from dpfed.runs.assembly import Components, assemble
from dpfed.runs.budgeting import foresee_budget
from dpfed.runs.preflight import foresee
from dpfed.runs.remarks import say_what_is_trained
from dpfed.runs.resolution import resolve, settle
from dpfed.runs.starts import origin_of, refuse_start
from dpfed.training.trainer import InProcess, Transport
from dpfed.training.worker import GroupObserver

if TYPE_CHECKING:
    from dpfed.federation.protocol.terms import Terms


@dataclass(frozen=True)
class Job:
    """A run that is ready to go on.

    Attributes:
        run: its directory, which must be locked while it is carried out.
        parts: its public parts.
        randomness: its secret.
    """

    run: RunDirectory
    parts: Components
    randomness: Randomness

    @property
    def observe(self) -> GroupObserver | None:
        """Receives raw, private figures of each step where the user asked for them."""
        return self.run.append_diagnostics if self.parts.config.diagnostics == "raw" else None


def check(config: Config, folder: str | Path, resume: bool) -> None:
    """Refuses keys that have no effect, and a directory that holds another run (unless `resume`, any) or cannot be made.

    Raises:
        UserError: naming the keys, or saying what is there.
    """
    refuse_without_effect(config)
    if resume and not RunDirectory.unused(folder):
        RunDirectory.open(folder).refuse_another(settle(config))
    else:
        RunDirectory.refuse_unusable(folder)


def begin(
    config: Config,
    folder: str | Path,
    watcher: Watcher,
    owners: int = 1,
    randomness: Randomness | None = None,
    terms: Terms | None = None,
    files: dict[str, str] | None = None,
) -> Job:
    """A new run in a directory that must not be in use, for the first of `owners` processes.

    Args:
        config: what to do.
        folder: must not be in use.
        watcher: sees the stages.
        owners: processes that share the work.
        randomness: the run's secret; default: `secret_of` the configuration.
        terms: of the federation that the run is for.
        files: further files of the run, by name.

    Raises:
        UserError: see `pretrain`.
    """
    randomness = randomness or secret_of(config)
    reserves = terms is None or RunDirectory.SIMULATION in (files or {})  # otherwise the records are the sites'
    parts = _prepared(config, folder, watcher, owners, randomness, terms, reserves)
    say_what_is_trained(parts, watcher)
    files = {
        RunDirectory.PROVENANCE: began(parts.store, parts.config.data, parts.public, origin_of(parts.config)),
        **(files or {}),
    }
    if terms:
        files[RunDirectory.TERMS] = terms.text
    return Job(RunDirectory.create(folder, parts.config, randomness, files), parts, randomness)


def refuse(config: Config, folder: str | Path, watcher: Watcher, owners: int = 1) -> None:
    """Refuses whatever `begin` would, and begins nothing. Records are imported if need be.

    Args:
        config: of the run.
        folder: that it would go to.
        watcher: sees the stages.
        owners: processes that share the work.

    Raises:
        UserError: see `pretrain`.
    """
    _prepared(config, folder, watcher, owners, secret_of(config), None, True)


def _prepared(
    config: Config,
    folder: str | Path,
    watcher: Watcher,
    owners: int,
    randomness: Randomness,
    terms: Terms | None,
    reserves: bool,
) -> Components:
    """The parts of a new run, after all checks; `reserves`: it takes from the lifetime budgets of its records."""
    RunDirectory.refuse_unusable(folder)
    refuse_start(config)
    if terms is None:
        foresee(config, owners=owners)  # before anything that takes seconds
    parts = assemble(resolve(config, watcher), randomness, watcher, owners=owners, terms=terms)
    refuse_unmeasured(parts.config, tasks_of(parts.store, parts.config))
    if reserves:
        foresee_budget(folder, parts.config, parts.store, parts.plan)
    return parts


def secret_of(config: Config) -> Randomness:
    """New secret randomness, or what a fixed seed gives."""
    seed = config.privacy.seed
    return Randomness.fresh() if seed is None else Randomness.from_seed(seed)


def take_up(run: RunDirectory, watcher: Watcher, owners: int = 1, terms: Terms | None = None) -> Job:
    """An unfinished run, for the first of `owners` processes; they may be more or fewer than before.

    Args:
        run: locked by the caller.
        watcher: sees the stages.
        owners: processes that share the work.
        terms: of the federation that the run is for.

    Raises:
        UserError: see `resume`; for a federation's run, if no terms are given.
    """
    if terms is None and run.terms.is_file():
        raise UserError(f"{run.path} is the run of a federation: start its server again (`flwr run`) to go on with it.")
    randomness = run.randomness()
    run.note_environment(environment())
    return Job(run, assemble(resolve(run.config()), randomness, watcher, owners=owners, terms=terms), randomness)


def alone(job: Job) -> Transport:
    """This process has all records and does all the work."""
    return InProcess([job.parts.worker(job.randomness.for_owners(), job.observe)])
