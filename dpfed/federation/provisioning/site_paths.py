"""A site's side: an unpacked kit, and beside its files what the site makes for itself."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpfed.errors import UserError
from dpfed.federation.leaving import has_left
from dpfed.federation.provisioning.certificates import NODE_PUBLIC, make_site_keys
from dpfed.federation.provisioning.kits import (
    MANIFEST,
    TERMS,
    Kit,
    Manifest,
    Reply,
    altered,
    is_spoken,
    read_kit,
    read_manifest,
)
from dpfed.federation.provisioning.services import NODE_PORT, require_plain
from dpfed.federation.site.folder import SiteFolder, records_of_site
from dpfed.files.atomic import make_folder, write_atomically
from dpfed.files.locking import file_lock
from dpfed.files.reading import read_text
from dpfed.protocol.terms import Terms


class SitePaths:
    """A folder with a kit and a site.

    Attributes:
        path: of it.
        site: the site's own folder in it.
        reply: the file for the coordinator.
        terms: where a kit with terms puts them.
        settings: the file of the site's settings for systemd.
        keys: the folder of its SuperNode's key.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.site = SiteFolder(self.path / "site")
        self.reply, self.terms, self.settings = self.path / "reply.json", self.path / TERMS, self.path / ".env"
        self.keys, self._pin = self.path / "keys", self.path / "keys" / "coordinator.json"

    @classmethod
    def set_up(cls, kit: Path, into: Path | None, coordinator: str, store: Path, **settings: Any) -> SitePaths:
        """Makes a site from its kit: unpacks it, and makes keys, card and reply.

        Args:
            kit: the archive, or the folder into which it was unpacked.
            into: where the folder of the kit goes; default: the current folder, or where it is already.
            coordinator: fingerprint of the coordinator's key, as its operator read it out.
            store: the site's records.
            settings: see `SiteFolder.create`; ``proxy``: of the site's network, such as ``http://proxy:3128``.

        Raises:
            UserError: for a kit that was altered or that somebody else made, or a folder in use. Nothing is made then.
        """
        read = read_kit(kit)
        if not is_spoken(coordinator, read.manifest.coordinator):
            raise UserError(
                f"{kit} was not made by the coordinator with the fingerprint {coordinator!r}: call them again, and have "
                "them read it out. If it is right, the kit comes from somebody else."
            )
        records_of_site(store, settings.get("declared"), settings)  # before anything is unpacked
        proxy = settings.pop("proxy", None)
        _refuse_proxy(proxy)
        path = kit if kit.is_dir() else (into or Path()) / read.manifest.folder
        paths = cls(require_plain(path.resolve()))
        cut_short = (paths.path / MANIFEST).is_file() and read_manifest(paths.path) == read.manifest
        if cut_short and paths.site.path.exists() and not paths.reply.exists():
            make_site_keys(paths.keys)  # if the old ones were taken away
            paths.write_reply()
            return paths
        if paths.site.path.exists():
            raise UserError(
                f"{paths.site.path} is there already, with keys of its own: `dpfed site join` takes a newer kit; "
                "for another site, choose another folder with --into."
            )
        name = read.manifest.site
        if not kit.is_dir():
            if paths.path.exists() and any(paths.path.iterdir()) and not cut_short:
                raise UserError(f"{paths.path} is there already, and is not empty: choose another folder with --into.")
            paths._write(read)
        for folder in ("budgets", "door", "flower"):
            make_folder(paths.path / folder, 0o700)
        make_site_keys(paths.keys)
        write_atomically(paths._pin, json.dumps(_pin_of(read.manifest)), 0o600)
        paths._write_settings(proxy)
        if not os.path.lexists(paths.path / "venv"):  # units start programs from there
            (paths.path / "venv").symlink_to(sys.prefix)
        SiteFolder.create(paths.site.path, name, store, **settings)
        paths.write_reply()
        return paths

    @classmethod
    def open(cls, path: Path) -> SitePaths:
        """Opens a site that was set up from a kit.

        Raises:
            UserError: if it is none.
        """
        if not (path / MANIFEST).is_file():
            raise UserError(f"{path} holds no starter kit: give the folder into which the coordinator's kit was unpacked.")
        paths = cls(path.resolve())
        SiteFolder.open(paths.site.path) if paths.site.path.exists() else paths._refuse_unmade()
        return paths

    @property
    def manifest(self) -> Manifest:
        """What the kit says about itself.

        Raises:
            UserError: if it is not of the coordinator whose fingerprint was compared, such as one that was unpacked by hand.
        """
        manifest = read_manifest(self.path)
        try:
            pin = json.loads(read_text(self._pin))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(
                f"{self._pin} is missing or damaged: it says which coordinator's fingerprint was compared. Restore it: a kit "
                "of somebody else could not be distinguished from the coordinator's."
            ) from error
        if _pin_of(manifest) != pin:
            raise UserError(
                f"the kit in {self.path} is not of the coordinator, federation and site for which `dpfed site "
                "setup` was given: "
                "unpack the newest kit of these again, by hand; the site's own files are as they were."
            )
        return manifest

    def unpack(self, kit: Path) -> bool:
        """Puts a newer kit in the place of the one that is here; keys, settings and ledger are no part of kits.

        Args:
            kit: the archive.

        Returns:
            Whether anything changed.

        Raises:
            UserError: for a kit of another federation or site, an older one, or files that were changed here. Nothing is
                changed then.
        """
        with file_lock(self.path / ".lock", f"another process unpacks a kit into {self.path}: try again when it has ended."):
            new, old = read_kit(kit), self.manifest
            if new.manifest.coordinator != old.coordinator or new.manifest.federation != old.federation:
                raise UserError(
                    f"{kit} is of another federation than {self.path}, or somebody else made it: nothing was changed."
                )
            if new.manifest.site != old.site or new.manifest.invitation != old.invitation:
                raise UserError(f"{kit} is the kit of {new.manifest.site}, and this is {old.site}: nothing was changed.")
            if new.manifest.serial < old.serial:
                raise UserError(
                    f"{kit} is older (number {new.manifest.serial}) than the kit here (number {old.serial}): nothing was "
                    "changed."
                )
            theirs = [
                name
                for name in altered(self.path, old)
                if (self.path / name).exists() and not _same(self.path / name, new, name)
            ]
            if theirs:
                raise UserError(
                    f"{self.path / theirs[0]} was changed here since the kit was unpacked, and would be overwritten: move "
                    "it away. Settings of your own belong into .env or `systemctl edit`."
                )
            if self.site.joined and TERMS in new.files and Terms.load(self.site.path / TERMS).text.encode() != new.files[TERMS]:
                raise UserError(f"{kit} holds other terms than those that {self.site.path} has joined: nothing was changed.")
            changed = new.manifest != old or bool(altered(self.path, old))
            if changed:
                self._write(new)
            return changed

    def join(self, agreed: Callable[[Terms], bool] | None = None) -> Terms | None:
        """Signs up to the kit's terms, see `SiteFolder.join`; ``None``: it was not agreed to.

        Raises:
            UserError: if the kit has none yet, or they are not the coordinator's.
        """
        manifest, kit = self.manifest, read_kit(self.path)
        if TERMS not in kit.files:
            raise UserError(
                f"the kit in {self.path} holds no terms yet: send {self.reply} to the coordinator, who sends a kit with "
                "terms when all sites have replied. `dpfed site join FOLDER KIT` takes it."
            )
        terms = Terms.load(self.terms)
        if terms.coordinator != manifest.coordinator:
            raise UserError(f"{self.terms} names another coordinator than the one that made this kit: do not join it.")
        return terms if self.site.join(terms, agreed) else None

    def leave(self) -> None:
        """Leaves the federation for good. What was spent stays spent, and what was reserved stays reserved.

        Raises:
            UserError: if the site is being served.
        """
        self.site.leave()
        self.write_reply()

    def write_reply(self) -> None:
        """Writes what the coordinator should know."""
        manifest = self.manifest
        reply = Reply(
            federation=manifest.federation,
            invitation=manifest.invitation,
            card=self.site.own_card(),
            node_key=read_text(self.keys / NODE_PUBLIC).strip(),
            left=has_left(self.site.path),
            written=max(int(time.time()), self._last_reply() + 1),
        )
        write_atomically(self.reply, reply.signed(self.site.identity()), 0o600)

    def _last_reply(self) -> int:
        try:
            return Reply.load(self.reply).written
        except UserError:  # there is none yet, or somebody damaged it
            return 0

    def env(self) -> dict[str, str]:
        """The settings in ``.env``.

        Raises:
            UserError: if it holds no text.
        """
        try:
            text = read_text(self.settings)
        except UnicodeDecodeError as error:
            raise UserError(f"{self.settings} is damaged: expected lines of text, NAME=VALUE.") from error
        lines = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
        return {name.strip(): value.strip() for name, _, value in lines}

    def _refuse_unmade(self) -> None:
        raise UserError(f"{self.path} is a kit of which no site was made yet: `dpfed site setup {self.path} ...` does.")

    def _write(self, kit: Kit) -> None:
        """Writes a kit's files, the manifest last: whoever is cut short in between unpacks again."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name, content in sorted(kit.files.items(), key=lambda item: item[0] == MANIFEST):
            make_folder((self.path / name).parent)
            write_atomically(self.path / name, content, 0o644)
        gone = [] if not (self.path / "systemd").is_dir() else [*(self.path / "systemd").glob("dpfed-*@.service")]
        for path in gone:
            if str(path.relative_to(self.path)) not in kit.files:
                path.unlink()

    def _write_settings(self, proxy: str | None) -> None:
        """Writes ``.env``, which systemd reads."""
        values = {
            "DPFED_BUDGETS": str(self.path / "budgets"),
            "DPFED_PORT": str(NODE_PORT),
            "NO_PROXY": "127.0.0.1,localhost",
        }
        if proxy:
            values["HTTPS_PROXY"] = proxy
        text = "# Settings of this site, for systemd. No kit overwrites this file.\n"
        write_atomically(self.settings, text + "".join(f"{name}={value}\n" for name, value in values.items()), 0o600)


def _refuse_proxy(proxy: str | None) -> None:
    if proxy is not None and not (proxy.startswith(("http://", "https://")) and proxy.isprintable() and " " not in proxy):
        raise UserError(f"--proxy {json.dumps(proxy)} is not a proxy's address: expected http://HOST:PORT.")


def _same(path: Path, kit: Kit, name: str) -> bool:
    """Whether a file is as a kit has it, such as one that somebody unpacked by hand."""
    return kit.files.get(name) == path.read_bytes()


def _pin_of(manifest: Manifest) -> dict[str, str]:
    """What all kits of one site have in common: kept where no kit can change it."""
    return manifest.model_dump(include={"coordinator", "federation", "site", "invitation"})
