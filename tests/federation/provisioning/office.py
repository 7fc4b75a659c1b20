"""A coordinator and two sites that go from a project to joined sites, as their operators do."""

from __future__ import annotations

import shutil
from pathlib import Path

import tomli_w

from dpfed.data.store.division import EVALUATION, divide_store, site_folder
from dpfed.federation.provisioning.project import Project
from dpfed.federation.provisioning.provision import Provisioned, provision
from dpfed.federation.provisioning.site_paths import SitePaths

SITES = ("north", "south")
PLAN = {
    "name": "tiny",
    "model": {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16},
    "bounding": {"group_size": 4, "engine": "loop"},
    "privacy": {"epsilon": 8.0, "batch": 60, "steps": 6, "accountant": "rdp"},
    "evaluation": {"tasks": ["retrieval"], "every": 6, "records": 40},
}


class Office:
    """The coordinator's machine, and beside it the sites'.

    Args:
        folder: empty, for everything.
        shapes: a store that is divided among the sites.
        more: keys of the project.
    """

    def __init__(self, folder: Path, shapes: Path, **more: object) -> None:
        self.folder, self.stores = folder, folder / "stores"
        divide_store(shapes, self.stores, len(SITES), 0.8)
        data = {"source": "store", "path": str(self.stores / EVALUATION), "size": 16}
        (folder / "plan.toml").write_text(tomli_w.dumps({**PLAN, "data": data}))
        self.file = folder / "project.toml"
        self.write(**more)

    def write(self, **more: object) -> None:
        """Writes the project anew."""
        project = {"name": "chest", "config": "plan.toml", "host": "localhost", "sites": list(SITES), **more}
        self.file.write_text(tomli_w.dumps(project))

    def move(self, host: str) -> None:
        """The SuperLink moves to another host, which wants a certificate of its own."""
        self.write(host=host)
        for name in ("server.pem", "server.key"):
            (self.folder / "chest" / "certificates" / name).unlink()

    def provision(self, **options: object) -> Provisioned:
        """The coordinator's command."""
        return provision(Project.load(self.file), self.file, **options)

    def store(self, site: str) -> Path:
        """A site's records."""
        return self.stores / site_folder(SITES.index(site))

    def set_up(self, site: str, done: Provisioned, **settings: object) -> SitePaths:
        """A site's first command, with the kit as it came."""
        place = self.folder / "machines" / site
        place.mkdir(parents=True, exist_ok=True)
        kit = shutil.copy(done.kits[site], place)
        return SitePaths.set_up(Path(kit), place, done.fingerprint, self.store(site), budget=8.0, **settings)

    def send(self, place: SitePaths, name: str | None = None) -> Path:
        """A site's reply reaches the coordinator."""
        return Path(shutil.copy(place.reply, self.folder / "chest" / "replies" / f"{name or place.kit.site}.json"))

    def joined(self) -> dict[str, SitePaths]:
        """All sites, after they have joined."""
        done = self.provision()
        places = {site: self.set_up(site, done) for site in SITES}
        for place in places.values():
            self.send(place)
        done = self.provision()
        for site, place in places.items():
            place.unpack(done.kits[site])
            place.join()
        return places
