"""All parties of a federation on one machine, each a process of its own.

The parties are a SuperLink, a SuperNode and a site worker for each site, and the operator's `flwr run`. They are connected over
TLS on the loopback interface. Unlike in a real federation, the records come from one store, which is divided among the sites.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import Config
from dpfed.console.terminal import console, say, watching
from dpfed.data.store.division import EVALUATION, divide_store, site_folder
from dpfed.errors import UserError
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.demo.loopback import RUN, Loopback, loopback
from dpfed.federation.flower.app_folder import make_app_folder, require_flower
from dpfed.federation.site.folder import SiteFolder
from dpfed.files.atomic import DRAFT
from dpfed.files.hidden import is_hidden
from dpfed.models.blueprints import LOCAL_DIR
from dpfed.progress import import_progress, signs_of_life
from dpfed.protocol.terms import Terms
from dpfed.runs.records import records_of, with_absolute_paths
from dpfed.runs.resolution import resolve_defaults

_READY = "ready"  # this file exists once all parties have joined
_FLOWERS = ("\x1b", "DEBUG:", "INFO:", "Using SuperLink", "Successfully")  # Flower's own lines; they are in the logs, too
_START = 300.0  # seconds that a site may take to load, on a busy machine


def federate(config: Config, path: Path, sites: int, skew: float, options: dict[str, Any]) -> RunDirectory:
    """Trains with several institutions on this machine. After an interruption, the same call continues the run.

    Args:
        config: Configuration of the run; its records are divided among the sites.
        path: Absolute path of the run's directory; the parties' folders go beside it.
        sites: Number of institutions.
        skew: Degree to which the sites' records differ, from 0 to 1 (`dpfed.data.store.division`).
        options: Options of the terms: ``trust``, ``drops``, ``colluders``, ``deadline``.

    Returns:
        The finished run.

    Raises:
        UserError: If Flower is not installed, the path is in use, the records or the terms are impossible, a party does not
            start, or the run does not finish.
    """
    require_flower()
    goes_on = not RunDirectory.unused(path)
    config, parties = resolve_defaults(config), path.with_name(f"{path.name}-parties")
    if not (parties / _READY).exists():
        if parties.exists():  # an attempt that was cut short, before anything was spent
            ours = {"stores", "coordinator", *map(site_folder, range(sites))}
            others = {each.name for each in parties.iterdir() if not is_hidden(each)} - ours
            if not RunDirectory.unused(path) or others:
                raise UserError(f"{parties} is in use: choose another --run. [flower-demo-in-use]")
            drafts = tuple(f".{name}{DRAFT}" for name in ours)
            for each in parties.iterdir():
                if each.is_dir() and (each.name in ours or each.name.startswith(drafts)):
                    shutil.rmtree(each)
        _found(config, parties, sites, skew, options)
        (parties / _READY).touch()
    with tempfile.TemporaryDirectory(prefix="dpfed-") as folder:
        sockets = {site_folder(number): Path(folder) / site_folder(number) / "door" for number in range(sites)}
        starting = contextlib.ExitStack()  # until the coordinator prints its first line
        starting.enter_context(signs_of_life(say, "starting the federation"))

        def meanwhile(federation: Loopback) -> None:
            app_folder = make_app_folder(Path(folder) / "app")
            say(f"the coordinator {'resumes' if goes_on else 'begins'} the run; it loads PyTorch and the held-out records")
            federation.submit(app_folder, {"federation": str(parties / "coordinator"), "run": str(path)})
            _serve(federation, parties, sockets)

        with starting, _refusing(), loopback(Path(folder) / "loopback", sockets, say, meanwhile) as federation:
            for name in sockets:
                federation.members.wait_for(f"{name}-worker", "ready", _START)
                say(f"{name} is ready: its records and the model are loaded")
            for line in federation.members.follow(RUN):
                if not line.startswith(_FLOWERS):
                    starting.close()
                    console.print(line, end="", markup=False, highlight=False, soft_wrap=True)
    if RunDirectory.unused(path) or not RunDirectory.open(path).finished:
        raise UserError(f"the run did not finish; the same command resumes it. Parties' folders: {parties}. [flower-demo-end]")
    return RunDirectory(path)


def _found(config: Config, parties: Path, sites: int, skew: float, options: dict[str, Any]) -> None:
    """Divides the records, makes the sites and the terms, and lets the sites join.

    In a real federation, the operators of the sites run five commands for this (docs/a-site-in-15-minutes.md).
    """
    with watching() as progress:
        store = records_of(config, import_progress(progress), say=progress.note)
        stores = parties / "stores"
        if not stores.exists():
            progress.note(f"dividing the records among {sites} institutions")
            divide_store(store.path, stores, sites, skew, progress=import_progress(progress, "records divided"))
    say(f"making {sites} institutions and the coordinator's terms, whose noise is planned for all records together")
    folders = [
        SiteFolder.create(parties / site_folder(number), site_folder(number), stores / site_folder(number), **_copies(config))
        for number in range(sites)
    ]
    data = config.data.model_copy(update={"source": "store", "path": str(stores / EVALUATION)})
    config = config.model_copy(update={"data": data})
    with watching() as progress:
        cards = [site.card for site in folders]
        coordinator = CoordinatorFolder.create(parties / "coordinator", config, cards, progress, **options)
    terms = Terms.load(coordinator.terms)
    for site in folders:  # the author of the configuration runs all parties
        site.join(terms, allowed=[part.name for part in terms.code])
    say(f"every institution has joined the terms {parties / 'coordinator' / 'terms.json'}")


def _copies(config: Config) -> dict[str, Any]:
    """Returns the absolute paths of the model's files that every site must have itself, by setting of `SiteSettings`.

    On one machine, these are the coordinator's own files.
    """
    model = with_absolute_paths(config).model
    given = {name: getattr(model, name) for name in ("weights", "architecture", "text", "anchors", "start")}
    return {name: value for name, value in given.items() if value and Path(value.removeprefix(LOCAL_DIR)).is_absolute()}


def _serve(federation: Loopback, parties: Path, sockets: dict[str, Path]) -> None:
    """Starts the sites' workers. They share this machine, so each gets one thread."""
    say(f"starting {len(sockets)} site workers; each loads PyTorch, its records and the model")
    for name, socket in sockets.items():
        command = ["dpfed", "site", "serve", parties / name, "--socket", socket]
        federation.members.start(f"{name}-worker", command, {"OMP_NUM_THREADS": "1"})


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raises a UserError with the end of a party's log if that party does not start: the log itself is deleted afterwards."""
    try:
        yield
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"a party of the federation did not start: {error}\nThis machine may be busy; the same command tries again, and "
            "resumes a run that has begun. [flower-demo-start]"
        ) from error
