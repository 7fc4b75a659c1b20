"""What an operator would look at if something did not work, and before: each finding says what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dpfed import __version__
from dpfed.budgets.refusals import percent, shown
from dpfed.budgets.registry import budgets_of
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.leaving import has_left
from dpfed.federation.provisioning.certificates import AUTHORITY, SERVER
from dpfed.federation.provisioning.kits import TERMS, Reply, altered
from dpfed.federation.provisioning.network import Finding, State, of_certificate, of_connection, of_port
from dpfed.federation.provisioning.own_files import (
    of_keys,
    of_ledger,
    of_party,
    of_permissions,
    of_programs,
    of_server,
    of_socket,
)
from dpfed.federation.provisioning.services import LINK_PORT, NODE_PORT
from dpfed.federation.provisioning.site_paths import SitePaths
from dpfed.federation.site.folder import SiteFolder, refuse_too_few
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.promise import round_up
from dpfed.protocol.messages import PROTOCOL
from dpfed.protocol.terms import Terms

_LEAST_DISK = 1 << 30  # bytes


def examine_site(folder: Path) -> list[Finding]:
    """Everything about a site that was set up from a kit. Nothing is changed.

    Args:
        folder: of the kit.

    Raises:
        UserError: if it is none.
    """
    place = SitePaths.open(folder)
    manifest = place.manifest
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("kit", lambda: _kit(place)),
        ("versions", lambda: _versions(manifest.release, manifest.protocol)),
        ("versions", lambda: of_programs(place)),
        ("keys", lambda: of_keys(place)),
        (
            "certificate",
            lambda: of_certificate(place.path / AUTHORITY, "the federation ends with its authority: call the coordinator"),
        ),
        ("coordinator", lambda: of_connection(manifest.superlink, place.path / AUTHORITY, place.env())),
        ("ports", lambda: _node_ports(place)),
        ("door", lambda: of_socket(place)),
        ("disk", lambda: _disk(place.path)),
        ("store", lambda: _store(place.site)),
        ("terms", lambda: _terms(place)),
        ("copies", lambda: _copies(place.site)),
        ("budget", lambda: of_ledger(place)),
        ("budget", lambda: _budget(place.site)),
    ]
    return [finding for name, check in checks for finding in _guarded(name, check)]


def examine_coordinator(folder: Path) -> list[Finding]:
    """Everything about a coordinator's folder. Nothing is changed.

    Args:
        folder: what `dpfed federation provision` made.

    Raises:
        UserError: if it is none.
    """
    if not (folder / "provision.json").is_file():
        raise UserError(
            f"{folder} was not provisioned: `dpfed federation provision project.toml` makes a coordinator's folder."
        )
    folder = folder.absolute()
    certificates = folder / "certificates"
    renew = "move server.pem and server.key away, `dpfed federation provision PROJECT`, then `nginx -s reload`"
    inner = f"move {certificates / 'inner'} away, `dpfed federation provision PROJECT`, and start the SuperLink again"
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("versions", lambda: _versions(__version__, PROTOCOL)),
        ("keys", lambda: of_permissions("keys", *_secret_of_coordinator(folder))),
        ("keys", lambda: of_party(folder)),
        ("certificate", lambda: of_server(certificates, renew)),
        ("certificate", lambda: of_server(certificates / "inner", inner)),
        ("certificate", lambda: _unless_good(of_certificate(certificates / "inner" / SERVER, inner))),
        ("certificate", lambda: of_certificate(certificates / SERVER, renew)),
        (
            "authority",
            lambda: of_certificate(certificates / AUTHORITY, "provision another federation: terms and kits are of this one"),
        ),
        ("authority", lambda: _offline(certificates / "ca.key")),
        ("ports", lambda: of_port(LINK_PORT, "the SuperLink", "start dpfed-superlink")),
        ("disk", lambda: _disk(folder)),
        ("sites", lambda: _replies(folder)),
    ]
    return [finding for name, check in checks for finding in _guarded(name, check)]


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """A check's findings; what it cannot look at is a finding, too."""
    try:
        return list(check())
    except UserError as error:
        return [Finding(name, State.BAD, str(error), "see the message above")]
    except PermissionError as error:
        return [Finding(name, State.UNKNOWN, f"{error.filename} may not be read by this user", "run this command as its owner")]
    except OSError as error:
        return [
            Finding(
                name,
                State.BAD,
                f"{error.filename}: {error.strerror or error}",
                "restore it, or see docs/a-site-in-15-minutes.md",
            )
        ]


def _kit(place: SitePaths) -> Iterator[Finding]:
    manifest = place.manifest
    if changed := altered(place.path, manifest):
        said = f"{', '.join(changed)}: not as the coordinator signed it"
        yield Finding("kit", State.BAD, said, f"unpack the kit again: dpfed site unpack {place.path} KIT")
    else:
        yield Finding("kit", State.GOOD, f"{manifest.federation}, {manifest.site}, number {manifest.serial}, as it was signed")


def _versions(release: str, protocol: int) -> Iterator[Finding]:
    here = f"dpfed {__version__}, protocol {PROTOCOL}"
    if protocol != PROTOCOL:
        yield Finding(
            "versions", State.BAD, f"{here}; the coordinator: {release}, protocol {protocol}", f"install dpfed {release}"
        )
    elif release != __version__:
        said = f"{here}; the coordinator: {release}, with the same protocol, so they understand each other"
        yield Finding(
            "versions", State.CARE, said, f"install dpfed {release} when it suits: restart the worker between two steps"
        )
    else:
        yield Finding("versions", State.GOOD, here)
    from dpfed.federation.flower.app_folder import FLOWER_VERSION

    try:
        flower = version("flwr")
    except PackageNotFoundError:
        yield Finding("versions", State.BAD, "Flower is not installed", "pip install 'dpfed[flower]'")
        return
    fits = flower.startswith(f"{FLOWER_VERSION}.")
    advice = f"pip install 'flwr~={FLOWER_VERSION}.0'"
    yield Finding("versions", State.GOOD if fits else State.BAD, f"Flower {flower}", "" if fits else advice)


def _disk(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    if hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY:
        yield Finding("disk", State.BAD, f"{folder} is on storage that is read-only", "mount it for writing")
        return
    said = f"{free / 1e9:,.1f} GB free at {folder}"
    if free < _LEAST_DISK:
        yield Finding("disk", State.BAD, said, "make room: a ledger that cannot be written ends the site's part in the run")
    else:
        yield Finding("disk", State.GOOD, said)


def _node_ports(place: SitePaths) -> Iterator[Finding]:
    port = place.env().get("DPFED_PORT", str(NODE_PORT))
    if has_left(place.site.path):
        return
    if not port.isdecimal() or not 0 < int(port) < 65536:
        yield Finding("ports", State.BAD, f"DPFED_PORT in .env is {port!r}", "write a number from 1 to 65535")
        return
    yield from of_port(
        int(port),
        "the SuperNode",
        "start node and app; the SuperNode ends, and is started again, until the coordinator has registered its key. In "
        "containers it is not seen from here",
    )


def _store(site: SiteFolder) -> Iterator[Finding]:
    settings = site.settings()
    store = RecordStore.open(settings.store)
    refuse_too_few(site.own_card().records, store, f"{site.card} declares")
    yield Finding("store", State.GOOD, f"{settings.store}, {store.training_records:,} training records")


def _terms(place: SitePaths) -> Iterator[Finding]:
    site = place.site
    if has_left(site.path):
        yield Finding("terms", State.CARE, "this site has left its federation permanently", "stop SuperNode and worker")
        return
    if not site.joined:
        if (place.path / TERMS).is_file():
            yield Finding(
                "terms",
                State.CARE,
                "the kit holds terms, and the site has not joined",
                f"dpfed site join {place.path} {place.path}",
            )
        else:
            said = "the kit holds no terms yet: they are made when all sites have replied"
            yield Finding("terms", State.CARE, said, f"send {place.reply} to the coordinator, and wait for the next kit")
        return
    terms, known = site.terms(), site.confirmed.read()
    others = [member.name for member in terms.sites if member.name != site.own_card().name and member.fingerprint not in known]
    if others and terms.trust_model.shared:
        said = f"{terms.fingerprint}; the cards of {', '.join(others)} are not confirmed"
        yield Finding("terms", State.CARE, said, f"call them, then: dpfed site confirm {place.path} FINGERPRINTS")
    else:
        yield Finding("terms", State.GOOD, f"{terms.fingerprint}, {terms.trust}, {len(terms.sites)} sites")


def _copies(site: SiteFolder) -> Iterator[Finding]:
    """What was agreed on and is not sent, such as public records."""
    if site.joined and not has_left(site.path):
        from dpfed.federation.site.serving import require_copies  # with torch, which takes seconds

        if found := require_copies(site.terms(), site.settings()):
            yield Finding("copies", State.GOOD, f"as agreed on: {', '.join(found)}")


def _budget(site: SiteFolder) -> Iterator[Finding]:
    settings = site.settings()
    if settings.budget is None:
        yield Finding(
            "budget", State.CARE, "the site has set no largest epsilon", f"write `budget = 8.0` into {site.path / 'site.toml'}"
        )
    for found in budgets_of(RecordStore.open(settings.store)):
        yield Finding(
            "budget",
            State.GOOD,
            f"lifetime budget {shown(found.budget)}: {percent(found.budget.filter.part(found.budget.spent))} is taken",
        )
    if not site.ledger.exists():
        return
    ledger = Ledger.open(site.ledger)
    plan = ledger.plan
    spent = f"epsilon {round_up(ledger.epsilon)} of {round_up(plan.epsilon())} is spent, {ledger.charged} of {plan.steps} steps"
    yield Finding("budget", State.GOOD, spent)


def _unless_good(findings: Iterator[Finding]) -> Iterator[Finding]:
    return (finding for finding in findings if finding.state is not State.GOOD)


def _secret_of_coordinator(folder: Path) -> list[Path]:
    certificates, inner = folder / "certificates", folder / "certificates" / "inner"
    keys = [certificates / "server.key", inner / "server.key", inner / "ca.key", folder / "federation" / "identity.key"]
    return [folder / "federation", folder / "kits", *keys]


def _offline(key: Path) -> Iterator[Finding]:
    if key.exists():
        yield Finding(
            "authority",
            State.CARE,
            f"{key} is on this machine",
            "move it to one that is offline; a new server's certificate needs it back",
        )


def _replies(folder: Path) -> Iterator[Finding]:
    agreed = CoordinatorFolder(folder / "federation")
    if not agreed.path.exists():
        there = {Reply.load(path).card.name for path in (folder / "replies").glob("*.json")}
        sites = {path.name.removesuffix(".tar.gz").partition("-")[2] for path in (folder / "kits").glob("*.tar.gz")}
        missing = ", ".join(sorted(sites - there))
        said = f"no terms yet; missing: {missing}" if missing else "no terms yet; all sites have replied"
        yield Finding("sites", State.CARE, said, "put the replies into replies/, then `dpfed federation provision PROJECT`")
        return
    terms = Terms.load(agreed.terms)
    yield Finding("sites", State.GOOD, f"terms {terms.fingerprint} for {', '.join(site.name for site in terms.sites)}")
