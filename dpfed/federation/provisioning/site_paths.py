"""A site's side of provisioning: its kit, and beside it the files that the site makes for itself."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dpfed.errors import UserError
from dpfed.federation.provisioning.certificates import AUTHORITY, NODE_PUBLIC, make_site_keys
from dpfed.federation.provisioning.kits import Kit, Origin, Reply, is_spoken
from dpfed.federation.provisioning.services import NODE_PORT, PROGRAMS, require_plain, site_files
from dpfed.federation.site.folder import SiteFolder, records_of_site
from dpfed.files.atomic import make_folder, write_atomically
from dpfed.files.hidden import is_hidden
from dpfed.files.locking import file_lock
from dpfed.files.reading import read_bytes, read_text
from dpfed.protocol.terms import Terms

KIT = "kit.json"


class SitePaths:
    """The folder in which a site has its kit, its own folder, and the files that start its programs.

    Attributes:
        path: Path of the folder.
        site: Site's own folder (`SiteFolder`), which is in this folder.
        reply: File of the site's reply, for the coordinator.
        settings: File of the site's settings for systemd.
        keys: Folder of the SuperNode's key pair, and of the secret that the SuperNode shares with its app.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.site = SiteFolder(self.path / "site")
        self.reply, self.settings, self.keys = self.path / "reply.json", self.path / ".env", self.path / "keys"
        self._origin = self.site.path / "coordinator.json"

    @classmethod
    def set_up(cls, kit: Path, into: Path | None, coordinator: str, store: Path, **settings: Any) -> SitePaths:
        """Makes a site from its kit: a folder with keys, card, reply, and the files that start its programs.

        Args:
            kit: File of the kit.
            into: Folder in which the site's folder is made; default: the current folder.
            coordinator: Fingerprint of the coordinator's key, as its operator read it out.
            store: Store of the site's records.
            settings: Settings of the site, see `SiteFolder.create`; ``proxy``: HTTP proxy of the site's network, such as
                ``http://proxy:3128``.

        Returns:
            The paths of the new site.

        Raises:
            UserError: If the kit was altered or made by somebody else, if a setting is impossible, if the records do not fit
                (see `records_of_site`), or if the folder is in use. Nothing is made then.
        """
        read = Kit.load(kit)
        if not is_spoken(coordinator, read.coordinator):
            raise UserError(
                f"{kit} was not made by the coordinator with the fingerprint {coordinator!r}: call the operator again to "
                "compare the fingerprint. If the fingerprint is right, the kit comes from somebody else. [kit-coordinator]"
            )
        proxy, declared = settings.pop("proxy", None), settings.pop("declared", None)
        records_of_site(store, declared, settings)  # before anything is made
        _refuse_proxy(proxy)
        paths = cls(require_plain(((into or Path()) / read.folder).resolve()))
        cut_short = (paths.path / KIT).is_file() and Kit.load(paths.path / KIT) == read
        if cut_short and paths.site.path.exists() and not paths.reply.exists():
            make_site_keys(paths.keys)  # if the old keys were removed
            return paths._finished(read)
        if paths.site.path.exists():
            raise UserError(
                f"{paths.site.path} is there already, with keys of its own: `dpfed site join` takes a newer kit; "
                "for another site, choose another folder with --into. [kit-set-up]"
            )
        if not cut_short and paths._in_use():
            raise UserError(f"{paths.path} is not empty: choose another folder with --into. [kit-folder-in-use]")
        paths.path.mkdir(parents=True, exist_ok=True)
        write_atomically(paths.path / KIT, read_text(kit), 0o644)  # first: it shows a setup that was cut short
        paths._write(read, kit)
        for folder in ("budgets", "door", "flower"):
            make_folder(paths.path / folder, 0o700)
        make_site_keys(paths.keys)
        paths._write_settings(proxy)
        if not os.path.lexists(paths.path / "venv"):  # units start programs from there
            (paths.path / "venv").symlink_to(sys.prefix)
        SiteFolder.create(paths.site.path, read.site, store, declared, **settings)
        return paths._finished(read)

    def _in_use(self) -> bool:
        """Returns whether the folder holds files. Hidden files of the file system, such as ``.DS_Store``, do not count."""
        there = self.path.iterdir() if self.path.exists() else ()
        return any(not is_hidden(path) or path == self.settings for path in there)

    def _finished(self, kit: Kit) -> SitePaths:
        """Writes the file that names the coordinator from which this site takes kits, and then the first reply."""
        write_atomically(self._origin, kit.origin.model_dump_json(indent=1) + "\n", 0o600)
        self.write_reply()
        return self

    @classmethod
    def open(cls, path: Path) -> SitePaths:
        """Opens a site that was set up from a kit.

        Raises:
            UserError: If the folder does not contain a site with a kit.
        """
        if not (path / KIT).is_file():
            raise UserError(
                f"{path} does not contain a starter kit: give the folder that `dpfed site setup` made. [kit-missing]"
            )
        paths = cls(path.resolve())
        SiteFolder.open(paths.site.path)
        return paths

    @property
    def kit(self) -> Kit:
        """The present kit, see `Kit.load`.

        Raises:
            UserError: If the file is not a kit, or if its coordinator, federation, site or invitation differs from `origin`,
                for example because somebody copied the file by hand.
        """
        kit = Kit.load(self.path / KIT)
        if kit.origin != self.origin():
            raise UserError(
                f"the kit in {self.path} is not from the coordinator, federation and site for which this site was set up: "
                "`dpfed site join FOLDER KIT` puts the right kit in its place. [kit-other-origin]"
            )
        return kit

    def origin(self) -> Origin:
        """Returns the coordinator, federation, site and invitation of the kit with which the site was set up.

        Raises:
            UserError: If the file that names them is missing or damaged.
        """
        try:
            return Origin.model_validate_json(read_text(self._origin))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self._origin}, which names the coordinator, is missing or damaged: restore the file, or remove {self.reply} "
                f"and run `dpfed site setup` again with {self.path / KIT} and --into {self.path.parent}. [kit-origin-damaged]"
            ) from error

    def unpack(self, kit: Path) -> bool:
        """Puts a newer kit in the place of the present one; keys, settings and ledger are not part of kits.

        If `kit` is the present kit, those of its files that were lost or changed are restored.

        Args:
            kit: File of the newer kit, or of the present one.

        Returns:
            ``True`` if anything changed.

        Raises:
            UserError: If the kit is from another coordinator or federation, or for another site; if the kit is older; or if its
                terms are not those that the site has joined. Nothing is changed then.
        """
        with file_lock(self.path / ".lock", f"another process takes a kit into {self.path}: try again when it has ended."):
            new, origin = Kit.load(kit), self.origin()
            if new.coordinator != origin.coordinator or new.federation != origin.federation:
                raise UserError(
                    f"{kit} is from another federation or coordinator than {self.path}: nothing was changed. [kit-federation]"
                )
            if new.origin != origin:
                raise UserError(
                    f"{kit} is the kit of {new.site}, but this site is {origin.site}: nothing was changed. [kit-site]"
                )
            try:
                old = self.kit
            except UserError:  # the present kit comes from elsewhere, or is damaged
                old = None
            if old is not None and new.serial < old.serial:
                raise UserError(
                    f"{kit} is older (number {new.serial}) than the site's kit ({old.serial}): nothing was changed. [kit-older]"
                )
            if self.site.joined and new.terms is not None and json.loads(self.site.terms().text) != new.terms:
                raise UserError(f"{kit} holds other terms than {self.site.path} has joined: nothing was changed. [kit-terms]")
            changed = any(_differs(self.path / name, content) for name, content in _contents(new, kit).items())
            if changed:
                self._write(new, kit)
            return changed

    def join(
        self, agreed: Callable[[Terms], bool] | None = None, unconfirmed: bool = False, allowed: Collection[str] = ()
    ) -> Terms | None:
        """Joins the federation under the kit's terms; see `SiteFolder.join` for the arguments.

        Returns:
            The terms; ``None`` if `agreed` rejected them.

        Raises:
            UserError: If the kit does not contain terms yet, if they are those of another coordinator, or if the site cannot
                join under them.
        """
        kit = self.kit
        if kit.terms is None:
            raise UserError(
                f"the kit in {self.path} does not contain terms yet: send {self.reply} to the coordinator, who sends a kit "
                "with terms when all sites have replied. `dpfed site join FOLDER KIT` takes it. [kit-no-terms]"
            )
        write_atomically(self.path / "terms.json", json.dumps(kit.terms, indent=1) + "\n", 0o644)
        terms = Terms.load(self.path / "terms.json")
        if terms.coordinator != kit.coordinator:
            raise UserError(f"the kit in {self.path} holds terms of another coordinator: do not join them. [kit-foreign-terms]")
        return terms if self.site.join(terms, agreed, unconfirmed, allowed) else None

    def leave(self) -> None:
        """Leaves the federation permanently. What was spent stays spent, and what was reserved stays reserved.

        Raises:
            UserError: If another process serves the site, or the cached features cannot be deleted; or if the reply cannot be
                written, see `write_reply`. In the last case the site has left all the same.
        """
        self.site.leave()
        self.write_reply()

    def write_reply(self) -> None:
        """Writes the reply for the coordinator: card, SuperNode key, and whether the site has left.

        Raises:
            UserError: If a file of the site that the reply needs is missing or damaged.
            OSError: If the public key of the SuperNode cannot be read, or the reply cannot be written.
        """
        origin = self.origin()
        reply = Reply(
            federation=origin.federation,
            invitation=origin.invitation,
            card=self.site.own_card(),
            node_key=read_text(self.keys / NODE_PUBLIC).strip(),
            left=self.site.left,
            written=max(int(time.time()), self._last_reply() + 1),
        )
        write_atomically(self.reply, reply.signed(self.site.identity()), 0o600)

    def _last_reply(self) -> int:
        """Returns the time in the last reply; 0 if there is no reply that can be read."""
        try:
            return Reply.load(self.reply).written
        except UserError:  # there is none yet, or it is damaged
            return 0

    def env(self) -> dict[str, str]:
        """Returns the settings in ``.env``, without the quotes that may enclose a value.

        Raises:
            UserError: If the file is not text.
            OSError: If the file cannot be read.
        """
        try:
            text = read_text(self.settings)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.settings} is damaged: expected lines of text, NAME=VALUE; restore it. [site-node-settings]"
            ) from error
        lines = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
        return {name.strip(): re.sub(r"^(['\"])(.*)\1$", r"\2", value.strip()) for name, _, value in lines}

    def _write(self, kit: Kit, file: Path) -> None:
        """Writes a kit and the files that follow from it. The kit comes last, so a call that was cut short can be repeated."""
        for folder in ("systemd", PROGRAMS):
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        for name, content in _contents(kit, file).items():
            write_atomically(self.path / name, content, 0o755 if name.startswith(PROGRAMS) else 0o644)

    def _write_settings(self, proxy: str | None) -> None:
        """Writes ``.env``, which systemd reads."""
        values = {"DPFED_BUDGETS": str(self.path / "budgets"), "DPFED_PORT": str(NODE_PORT), "NO_PROXY": "127.0.0.1,localhost"}
        if proxy:
            values["HTTPS_PROXY"] = proxy
        text = "# Settings of this site, for systemd. No kit overwrites this file.\n"
        write_atomically(self.settings, text + "".join(f"{name}={value}\n" for name, value in values.items()), 0o600)


def _contents(kit: Kit, file: Path) -> dict[str, bytes]:
    """Returns the content of the kit's file, and of the files that follow from it; the kit's file is the last."""
    files = {name: text.encode() for name, text in site_files(kit.federation, kit.site, kit.superlink).items()}
    return {**files, AUTHORITY: bytes.fromhex(kit.authority), KIT: read_text(file).encode()}


def _differs(path: Path, content: bytes) -> bool:
    return not path.is_file() or read_bytes(path) != content


def _is_proxy(text: str) -> bool:
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        return is_one and text.isprintable() and " " not in text
    except ValueError:  # such as a port that is no number
        return False


def _refuse_proxy(proxy: str | None) -> None:
    if proxy is not None and not _is_proxy(proxy):
        raise UserError(f"--proxy {json.dumps(proxy)} is not a proxy's address: expected http://HOST:PORT. [site-proxy]")
