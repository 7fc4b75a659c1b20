"""A federation on one machine, from records to the privacy card: what `make federation` does.

    python -m server.demo federation --run runs/federation

Every party is a process of its own, as on machines of their own: a SuperLink, a SuperNode and a site worker for each site, and
the operator's `flwr run`, over TLS on the loopback interface. Only the records are not three institutions' own, but one store
divided among them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from dpfed.cli.entry import run as run_app
from dpfed.cli.simulation import Skew
from dpfed.cli.terminal import chosen_config, console, say, show_run, watching
from dpfed.config import Config
from dpfed.data.division import EVALUATION, divide_store, site_folder
from dpfed.data.opening import open_records
from dpfed.errors import UserError
from dpfed.federation.folders import CoordinatorFolder, SiteFolder
from dpfed.federation.terms import Terms
from dpfed.models.building import preprocessing_of, settled
from dpfed.pretraining import with_absolute_paths
from dpfed.run import RunDirectory
from dpfed.watching import import_progress
from server.app_folder import make_app_folder
from server.loopback import RUN, Loopback, loopback

_READY = "ready"  # a file that says that all parties have signed up
_FLOWERS = ("\x1b", "DEBUG:", "INFO:", "Using SuperLink", "Successfully")  # lines of Flower's own, also in the processes' logs
_START = 300.0  # seconds that a site may take to load, on a busy machine

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    config: Annotated[Path, typer.Argument(help="A TOML file, or a name such as federation.")],
    run: Annotated[Path, typer.Option(help="Where the run goes; the parties' folders go beside it.")],
    assignments: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key.")] = None,
    sites: Annotated[int, typer.Option(min=2, help="Institutions.")] = 3,
    trust: Annotated[str, typer.Option(help="central, distributed, secure or local.")] = "central",
    drops: Annotated[int, typer.Option(help="Sites that may drop out of a step.")] = 0,
    colluders: Annotated[int, typer.Option(help="Sites that may tell others what they know.")] = 1,
    skew: Skew = 0.8,
    deadline: Annotated[float, typer.Option(help="Seconds that a step waits for the slowest site.")] = 120.0,
) -> None:
    """Train with several institutions, all on this machine; again after an interruption, to go on."""
    say(f"reading {config}")
    loaded, place = with_absolute_paths(chosen_config(config, assignments)), run.absolute()
    if not RunDirectory.unused(place) and RunDirectory.open(place).finished:
        show_run(RunDirectory(place))
        return
    parties = place.with_name(f"{place.name}-parties")
    if not (parties / _READY).exists():
        if parties.exists():  # an attempt that was cut short, before anything was spent
            ours = {"stores", "coordinator", *map(site_folder, range(sites))}
            if not RunDirectory.unused(place) or {path.name for path in parties.iterdir()} - ours:
                raise UserError(f"{parties} is in use: choose another --run.")
            shutil.rmtree(parties)
        options: dict[str, Any] = {"trust": trust, "drops": drops, "colluders": colluders, "deadline": deadline}
        _found(loaded, parties, sites, 0.8 if skew is None else skew, options)
        (parties / _READY).touch()
    with tempfile.TemporaryDirectory(prefix="dpfed-") as folder:
        doors = {site_folder(number): Path(folder) / site_folder(number) / "door" for number in range(sites)}
        with loopback(Path(folder) / "loopback", doors) as federation:
            _serve(federation, parties, doors)
            app_folder = make_app_folder(Path(folder) / "app")
            federation.submit(app_folder, {"federation": str(parties / "coordinator"), "run": str(place)})
            for line in federation.members.follow(RUN):
                if not line.startswith(_FLOWERS):
                    console.print(line, end="", markup=False, highlight=False, soft_wrap=True)
    if RunDirectory.unused(place) or not RunDirectory.open(place).finished:
        raise UserError(f"the run did not finish; the same command goes on with it. {parties} has what the parties keep.")


def _found(config: Config, parties: Path, sites: int, skew: float, options: dict[str, str | int | float]) -> None:
    """Divides the records, makes the sites, and has them join: five commands for each institution (docs/federation.md)."""
    with watching() as watcher:
        interpolation = preprocessing_of(config).interpolation
        store = open_records(settled(config).data, import_progress(watcher), interpolation=interpolation)
    stores = parties / "stores"
    if not stores.exists():
        divide_store(store.path, stores, sites, skew)
    own = [
        SiteFolder.create(parties / site_folder(number), site_folder(number), stores / site_folder(number))
        for number in range(sites)
    ]
    data = config.data.model_copy(update={"source": "store", "path": str(stores / EVALUATION)})
    config = config.model_copy(update={"data": data})
    coordinator = CoordinatorFolder.create(parties / "coordinator", config, [site.card for site in own], **options)
    for site in own:
        site.join(Terms.load(coordinator.terms))


def _serve(federation: Loopback, parties: Path, doors: dict[str, Path]) -> None:
    """Starts the sites' workers; they share this machine, so each gets one thread."""
    for name, door in doors.items():
        command = ["dpfed", "site", "serve", parties / name, "--socket", door]
        federation.members.start(f"{name}-worker", command, {"OMP_NUM_THREADS": "1"})
    for name in doors:
        federation.members.wait_for(f"{name}-worker", "ready", _START)


if __name__ == "__main__":
    run_app(app)
