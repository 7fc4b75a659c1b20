"""The coordinator's side: makes one signed kit for each site and the coordinator's folder from `project.toml`.

Every party makes its keys on its own machine, so provisioning takes two rounds. First every site gets an invitation. When all
sites have replied, the terms are made, and every site gets a new kit that holds them. One command does whatever can be done
now, and says what it waits for.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfed.errors import UserError
from dpfed.federation.coordinator.folder import CoordinatorFolder, refuse_proposal
from dpfed.federation.provisioning.certificates import AUTHORITY, AUTHORITY_KEY, SERVER, SERVER_KEY, is_for, make_certificates
from dpfed.federation.provisioning.kits import Kit, Reply, spoken
from dpfed.federation.provisioning.network import State, of_certificate
from dpfed.federation.provisioning.project import Project
from dpfed.federation.provisioning.services import PROGRAMS, coordinator_files, require_plain
from dpfed.files.atomic import make_folder, write_atomically
from dpfed.files.hidden import is_hidden, visible_files
from dpfed.files.locking import file_lock
from dpfed.files.reading import read_bytes, read_text
from dpfed.progress import Progress
from dpfed.protocol.identity import Identity
from dpfed.protocol.terms import Terms
from dpfed.runs.records import with_absolute_paths

INNER_DAYS = 3650  # the SuperLink's own certificate never leaves its machine
_LOCK = ".lock"
STATE = "provision.json"
_AFTER = {  # what to do when a file of the coordinator, or one in a folder, has changed
    "README.md": "read it again",
    "proxy.conf": "run `nginx -t && nginx -s reload`, so that the proxy uses it",
    "systemd": "copy it again, see README.md, and restart its program",
}


@dataclass
class Provisioned:
    """The result of provisioning, for the operator.

    Attributes:
        folder: Folder of the coordinator.
        fingerprint: Fingerprint of the coordinator's key, to be read out to the sites.
        kits: File of each kit, by site.
        changed: Sites whose kit is new or has changed.
        waiting: Sites that have not replied.
        left: Sites that have left.
        news: Messages about other changes, and what to do about them.
        terms: Terms of the federation, if all sites have replied; otherwise ``None``.
    """

    folder: Path
    fingerprint: str
    kits: dict[str, Path] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    news: list[str] = field(default_factory=list)
    terms: Terms | None = None


def state_of(folder: Path) -> dict[str, Any]:
    """Returns what `provision` keeps in a coordinator's folder: the federation's name, the invitations, the SuperLink's port.

    Raises:
        UserError: If the file that holds this is damaged.
        OSError: If the file cannot be read.
    """
    try:
        state = json.loads(read_text(folder / STATE))
    except (ValueError, RecursionError):
        state = None
    kinds = {"name": str, "invitations": dict, "link_port": int}
    if not isinstance(state, dict) or not all(isinstance({"link_port": 0, **state}.get(key), kinds[key]) for key in kinds):
        raise UserError(f"{folder / STATE} is damaged: restore it from a backup. [project-state-damaged]")
    return state


def provision(project: Project, beside: Path, folder: Path | None = None, progress: Progress | None = None) -> Provisioned:
    """Makes or updates a coordinator's folder and the kits of its sites; if nothing is new, a repeated call changes nothing.

    Args:
        project: Decisions of the operator.
        beside: File of the project. The configuration's file is looked up in the same folder.
        folder: Folder of the coordinator; default: beside the project's file, with the project's name.
        progress: Progress, see `CoordinatorFolder.create`; default: nothing is shown.

    Returns:
        The result, for the operator.

    Raises:
        UserError: If the folder cannot be used or belongs to another project, if sites or options of the project differ from
            the terms, if a reply does not fit, if the server's certificate is for another host, if a file in the folder is
            damaged, or if the terms are impossible.
    """
    path = require_plain((folder or beside.parent / project.name).absolute())
    office = _Office(path, project)
    if not office.agreed.path.exists():
        refuse_proposal(project.run_config(beside), len(project.sites))  # before anything is made, and any site is asked
    with office.held():
        office.refuse_other()
        office.found()
        replies = office.replies()
        done = Provisioned(path, spoken(office.identity().signing_key), news=office.news)
        done.waiting = [site for site in project.sites if site not in replies]
        done.left = [site for site, reply in replies.items() if reply.left]
        if not done.waiting and not office.agreed.path.exists():
            office.agree(beside, replies, progress)
        done.terms = Terms.load(office.agreed.terms) if office.agreed.path.exists() else None
        if done.terms:
            office.agreed.note_left(done.left)
        office.keep_node_keys(replies)
        for site in project.sites:
            done.kits[site], changed = office.write_kit(site)
            done.changed += [site] * changed
        return done


class _Office:
    """The coordinator's folder while `provision` makes or updates it."""

    def __init__(self, path: Path, project: Project) -> None:
        self.path, self._project = path, project
        self.certificates, self._kits, self._replies = path / "certificates", path / "kits", path / "replies"
        self._nodes, self._key, self._state = path / "nodes", path / "identity.key", path / STATE
        self.agreed = CoordinatorFolder(path / "federation")
        self.news: list[str] = []

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Makes the folder if need be, and locks it for this process.

        Raises:
            UserError: If the folder is used for something else, or another process provisions it.
        """
        others = self.path.exists() and any(not is_hidden(path) or path.name == ".env" for path in self.path.iterdir())
        if others and not os.path.lexists(self._state):
            raise UserError(f"{self.path} holds other files: give another folder with --folder. [project-folder-in-use]")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return file_lock(self.path / _LOCK, f"another process provisions {self.path}: try again when it has ended.")

    def refuse_other(self) -> None:
        """Refuses a folder of another project, and sites or options that differ from those of the terms.

        Raises:
            UserError: If the name, the sites or an option of the project differs, or a file of the folder is damaged.
        """
        if not self._state.exists():
            return
        name = state_of(self.path)["name"]
        if name != self._project.name:
            raise UserError(
                f"{self.path} is the folder of the federation {name!r}, but the project is named {self._project.name!r}: "
                "give another --folder. [project-other-name]"
            )
        if self.agreed.path.exists():
            terms = Terms.load(self.agreed.terms)
            agreed = [site.name for site in terms.sites]
            if agreed != list(self._project.sites):
                raise UserError(
                    f"the terms of {name!r} exist already, for the sites {', '.join(agreed)}, and never change: "
                    "restore these sites in the project, or start a project with another name. [project-other-sites]"
                )
            for key, value in self._project.options.items():
                if getattr(terms, key) != value:
                    raise UserError(
                        f"the project sets {key} = {value!r}, but the terms of {name!r} were made with {getattr(terms, key)!r} "
                        f"and cannot change: set {key} back to {getattr(terms, key)!r}, or start a project with another name. "
                        "[project-other-options]"
                    )

    def found(self) -> None:
        """Makes what does not exist yet: key, certificates, folders, and the files that start the coordinator.

        Raises:
            UserError: If the server's certificate is for another host, or a certificate or key cannot be used.
        """
        if not self._state.exists():  # first: from here on the folder is this project's, whatever fails
            self._save({"name": self._project.name, "invitations": {}})
        for folder in (self._kits, self._replies, self._nodes):
            make_folder(folder, 0o700)
        if not self._key.exists() and not self.agreed.path.exists():
            Identity.fresh().save(self._key)
        if self._key.exists() and self.agreed.path.exists():
            self._key.unlink()  # the federation's folder has the key
        if not (self.certificates / SERVER).exists():
            if os.path.lexists(self.certificates / AUTHORITY):
                self.news.append("the server's certificate is new: run `nginx -s reload`, so that the proxy uses it")
            make_certificates(self.certificates, [self._project.host])
        elif not is_for(self.certificates / SERVER, self._project.host):
            raise UserError(
                f"{self.certificates / SERVER} is not for the host {self._project.host!r}, so the sites would refuse it: "
                f"restore the project's host, or move {SERVER} and {SERVER_KEY} away and put {AUTHORITY_KEY} beside "
                f"{AUTHORITY}, and run this command again. [project-host]"
            )
        renew = f"move {SERVER} and {SERVER_KEY} away, put {AUTHORITY_KEY} beside {AUTHORITY}, and run this command again"
        for finding in of_certificate(self.certificates / SERVER, renew):
            if finding.state is not State.GOOD:
                self.news.append(f"{finding.said}: {finding.advice}")
        if not (self.certificates / "inner" / SERVER).exists():
            make_certificates(self.certificates / "inner", ["localhost", "127.0.0.1"], INNER_DAYS)
        project = self._project
        files = coordinator_files(project.name, str(self.path), project.host, project.port, project.link_port)
        self._save(state_of(self.path) | {"link_port": project.link_port})
        for name, text in files.items():
            make_folder((self.path / name).parent)
            if _write_if_other(self.path / name, text.encode(), 0o755 if name.startswith(PROGRAMS) else 0o644):
                self.news.append(f"{name} has changed: {_AFTER.get(Path(name).parts[0], 'restart its program')}")
        if not os.path.lexists(self.path / "venv"):
            (self.path / "venv").symlink_to(sys.prefix)

    def identity(self) -> Identity:
        """Reads the coordinator's long-term cryptographic keys, for signatures and for agreeing on secrets."""
        return self.agreed.identity() if self.agreed.path.exists() else Identity.load(self._key)

    def replies(self) -> dict[str, Reply]:
        """Returns the newest reply of each site, by site in the project's order.

        Raises:
            UserError: If a reply does not answer its site's kit, or contradicts another reply.
        """
        newest: dict[str, tuple[Path, Reply]] = {}
        for path in visible_files(self._replies, ".json"):
            reply = Reply.load(path)
            name = reply.card.name
            reply.refuse(path, self._expected(name))
            if name in newest and newest[name][1].card != reply.card:
                raise UserError(
                    f"{newest[name][0]} and {path} both name {name}, with different cards: have the site read out its "
                    "card's fingerprint, and remove the reply whose card has another fingerprint. [project-two-replies]"
                )
            if name not in newest or reply.written >= newest[name][1].written:
                newest[name] = path, reply
        self._refuse_same_keys(newest)
        return {site: newest[site][1] for site in self._project.sites if site in newest}

    def agree(self, beside: Path, replies: dict[str, Reply], progress: Progress | None) -> None:
        """Makes the terms from the sites' replies.

        Raises:
            UserError: If a site has left, or the terms are impossible.
        """
        if gone := [site for site, reply in replies.items() if reply.left]:
            raise UserError(f"{gone[0]} left before the terms were made: take it out of the project's sites. [project-left]")
        config = with_absolute_paths(self._project.run_config(beside))
        cards = [replies[site].card for site in self._project.sites]
        CoordinatorFolder.create(self.agreed.path, config, cards, progress, identity=self.identity(), **self._project.options)
        self._key.unlink(missing_ok=True)

    def keep_node_keys(self, replies: dict[str, Reply]) -> None:
        """Writes the SuperNodes' public keys where `dpfed federation run` reads them; removes the keys of sites that left."""
        wanted = {f"{site}.pub": reply.node_key.strip().encode() + b"\n" for site, reply in replies.items() if not reply.left}
        for name, content in wanted.items():
            new = not (self._nodes / name).exists()
            if _write_if_other(self._nodes / name, content) or new:
                self.news.append(f"the key of the SuperNode {Path(name).stem} is new: the run registers it")
        for file in visible_files(self._nodes, ".pub"):
            if file.name not in wanted:
                file.unlink()
                self.news.append(f"the key of the SuperNode {file.stem} is no longer in use: the run unregisters it")

    def write_kit(self, site: str) -> tuple[Path, bool]:
        """Makes a site's kit, unless it would be the same as the present one.

        Returns:
            The kit's file, and ``True`` if the kit is new or has changed.
        """
        path = self._kit_of(site)
        before = Kit.load(path) if path.exists() else None
        kit = Kit(
            federation=self._project.name,
            site=site,
            serial=before.serial if before else 1,
            coordinator=self.identity().signing_key,
            invitation=self._invitation(site),
            superlink=self._project.address,
            authority=read_bytes(self.certificates / AUTHORITY).hex(),
            terms=json.loads(self.agreed.terms.read_bytes()) if self.agreed.path.exists() else None,
        )
        if kit == before:
            return path, False
        kit = kit.model_copy(update={"serial": before.serial + 1 if before else 1})
        write_atomically(path, kit.signed(self.identity()), 0o600)
        return path, True

    def _kit_of(self, site: str) -> Path:
        return self._kits / f"{self._project.name}-{site}.kit.json"

    def _expected(self, name: str) -> Kit | None:
        """Returns the kit of a site that has replied; ``None``: the project has no such site."""
        if name not in self._project.sites:
            return None
        if not self._kit_of(name).exists():
            raise UserError(
                f"there is a reply of {name}, but no kit yet: remove the reply, and send the kit first. [project-no-kit]"
            )
        return Kit.load(self._kit_of(name))

    def _refuse_same_keys(self, replies: dict[str, tuple[Path, Reply]]) -> None:
        """Refuses replies of two sites that name the same key."""
        owners: dict[str, str] = {}
        for name, (path, reply) in replies.items():
            for key in (reply.card.signing_key, reply.card.exchange_key, " ".join(reply.node_key.split()[:2])):
                if owners.setdefault(key, name) != name:
                    raise UserError(
                        f"{path}: {name} and {owners[key]} share a key: have one of them run `dpfed site setup` in a new "
                        "folder (--into) and send the new reply, and put the new reply in place of the old one. [project-keys]"
                    )

    def _invitation(self, site: str) -> str:
        """Returns the secret string in a site's kit that the site's reply must repeat; makes a new one for a new site."""
        state = state_of(self.path)
        if site not in state["invitations"]:
            state["invitations"][site] = secrets.token_hex(16)
            self._save(state)
        return state["invitations"][site]

    def _save(self, state: dict[str, object]) -> None:
        write_atomically(self._state, json.dumps(state, indent=1) + "\n", 0o600)


def _write_if_other(path: Path, content: bytes, mode: int = 0o644) -> bool:
    """Writes a file, unless it has this content already.

    Returns:
        ``True`` if other content was replaced.
    """
    before = path.read_bytes() if path.exists() else None
    if before != content:
        write_atomically(path, content, mode)
    return before not in (None, content)
