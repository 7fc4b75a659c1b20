"""Checks of what a site made for itself: its keys, its ledger, its locks, the door, and where its units find their programs.

Checks of what a coordinator keeps: its own key, the run's configuration, and the keys of its certificates.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.leaving import has_left
from dpfed.federation.provisioning.certificates import NODE, NODE_PUBLIC, RUNTIME, SERVER, SERVER_KEY, certificates_in, is_whole
from dpfed.federation.provisioning.network import Finding, State
from dpfed.federation.provisioning.site_paths import SitePaths
from dpfed.files.reading import read_bytes
from dpfed.privacy.ledger import Ledger
from dpfed.protocol.terms import Terms

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_RESTORE = "restore it, if it was moved away; otherwise the site cannot continue: docs/a-site-in-15-minutes.md, Backups"


def of_permissions(name: str, *places: Path) -> Iterator[Finding]:
    """Whether other users can reach what is secret.

    Args:
        name: of the finding.
        places: folders and files that are for their owner alone. What is not there is not looked at.
    """
    open_ones = [str(place) for place in places if place.exists() and place.stat().st_mode & _OTHERS]
    if open_ones:
        yield Finding(name, State.BAD, f"other users may reach {', '.join(open_ones)}", f"chmod go= {' '.join(open_ones)}")
    else:
        yield Finding(name, State.GOOD, "closed to other users")


def of_keys(place: SitePaths) -> Iterator[Finding]:
    """Whether the keys are there, whole, and closed to other users.

    Raises:
        UserError, OSError: for a key that is missing or damaged.
    """
    site, keys = place.site, place.keys
    secret = [path for path in sorted(keys.iterdir()) if path.suffix != ".pub"]
    yield from of_permissions("keys", site.path, keys, site.path / "identity.key", site.path / "secret.key", *secret)
    missing = [keys / name for name in (NODE, NODE_PUBLIC, RUNTIME) if not (keys / name).is_file()]
    advice = f"restore it, or remove {place.reply} and the SuperNode's keys, and run `dpfed site setup` again"
    if missing:
        yield Finding("keys", State.BAD, f"{', '.join(map(str, missing))} is missing", advice)
    elif not is_whole(keys):
        yield Finding("keys", State.BAD, f"{keys / NODE} is damaged, or not the key of {NODE_PUBLIC}", advice)
    yield from _whole_keys(place)


def _whole_keys(place: SitePaths) -> Iterator[Finding]:
    left = has_left(place.site.path)
    for name in ("identity.key",) if left else ("identity.key", "secret.key"):
        read_bytes(place.site.path / name)  # an error of the system's says whether this user may not
    signing = place.site.identity().signing_key
    if not left:
        place.site.randomness()
    if signing != place.site.own_card().signing_key:
        yield Finding("keys", State.BAD, f"{place.site.path / 'identity.key'} is not the key of the site's card", _RESTORE)


def of_ledger(place: SitePaths) -> Iterator[Finding]:
    """Whether the ledger and the terms that it belongs to are both there, can be written, and cost what the site agrees to.

    Raises:
        UserError: if they cost more than that.
    """
    site = place.site
    if has_left(site.path):
        return
    if site.joined and not os.path.lexists(site.ledger):
        yield Finding("budget", State.BAD, f"{site.ledger} is missing: what the site has spent is not known", _RESTORE)
    elif not site.joined and site.ledger.is_file() and Ledger.open(site.ledger).charged:
        said = f"{site.ledger} was charged steps of a federation whose terms are gone"
        yield Finding("terms", State.BAD, said, f"restore {site.path / 'terms.json'}, or copy it from the kit that was joined")
    closed = [path for path in (site.path, site.ledger) if path.exists() and not path.stat().st_mode & stat.S_IWUSR]
    if closed:
        said = f"{', '.join(map(str, closed))} cannot be written, so no step can be charged"
        yield Finding("budget", State.BAD, said, f"chmod u+w {' '.join(map(str, closed))}")
    if site.joined:
        site.refuse_cost(site.terms().privacy_plan)


def of_socket(place: SitePaths) -> Iterator[Finding]:
    """Whether the worker will take its locks and open its door, in the folder that the units name."""
    folder, owner = place.path / "door", place.site.path.stat().st_uid
    made = f"see Part 2 of {place.path / 'README.md'}"
    for lock in (place.site.path / ".lock", folder / "socket.lock"):
        if os.path.lexists(lock) and not stat.S_ISREG(lock.lstat().st_mode):
            yield Finding("door", State.BAD, f"{lock} is not an ordinary file, and a lock is taken there", f"rm -r {lock}")
    if not os.path.lexists(folder):
        yield Finding("door", State.CARE, f"{folder} is missing: the SuperNode's user may not reach the worker", made)
        return
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        yield Finding("door", State.BAD, f"{folder} is not a directory, and the worker's socket goes there", made)
    elif found.st_uid not in (owner, 0):
        said = f"{folder} belongs to user {found.st_uid}, who could put a socket of theirs there"
        yield Finding("door", State.BAD, said, f"chown {owner} {folder}")
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        said = f"other users may write to {folder}, and could put a socket of theirs there"
        yield Finding("door", State.BAD, said, f"chmod go-w {folder}")
    elif os.path.lexists(socket := folder / "socket") and not stat.S_ISSOCK(socket.lstat().st_mode):
        yield Finding("door", State.BAD, f"{socket} is there and is not a socket", f"rm -r {socket}")
    else:
        yield Finding("door", State.GOOD, f"{folder}, for the worker's user to open")


def of_programs(place: SitePaths) -> Iterator[Finding]:
    """Whether there are programs where the units look for them."""
    if not (place.path / "venv" / "bin" / "python").exists():
        said = f"{place.path / 'venv'} leads to no Python environment, and systemd's units start their programs from there"
        yield Finding("versions", State.CARE, said, f"dpfed site link {place.path}; containers do not need it")


def of_party(folder: Path) -> Iterator[Finding]:
    """Whether the coordinator's key is the one that the terms name, and the run's configuration can be read.

    Args:
        folder: of the coordinator, as it was provisioned.

    Raises:
        UserError: if one of them is missing or damaged.
    """
    party = CoordinatorFolder(folder / "federation")
    if not party.path.exists():  # there are no terms yet
        return
    if party.identity().signing_key != Terms.load(party.terms).coordinator:
        said = f"{party.path / 'identity.key'} is not the key that the terms name, so no site will answer"
        yield Finding("keys", State.BAD, said, "restore the one that was there when the terms were made")
    party.config()
    if not (folder / "nodes").is_dir():
        said = f"{folder / 'nodes'} is missing, which holds the SuperNodes' public keys"
        yield Finding("keys", State.BAD, said, "dpfed federation provision PROJECT makes it from the replies")


def of_server(folder: Path, advice: str) -> Iterator[Finding]:
    """Whether a server's key is there, and is that of its certificate.

    Args:
        folder: of both.
        advice: how new ones are made.

    Raises:
        UserError, OSError: if one of them cannot be read.
    """
    try:
        key = load_pem_private_key(read_bytes(folder / SERVER_KEY), None)
        fits = key.public_key() == certificates_in(folder / SERVER)[0].public_key()
    except (ValueError, TypeError):
        fits = False
    if not fits:
        yield Finding("certificate", State.BAD, f"{folder / SERVER_KEY} is not the key of {folder / SERVER}", advice)
