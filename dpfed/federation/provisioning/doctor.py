"""Checks a site for its operator, before or after something fails. A finding that is not good says what to do.

The checks open the same files as the site's programs, and report as findings what these programs would refuse.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import ValidationError

from dpfed import __version__
from dpfed.budgets.refusals import percent, shown
from dpfed.budgets.registry import budgets_of
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.federation.flower.app_folder import FLOWER_VERSION
from dpfed.federation.provisioning.certificates import AUTHORITY, is_whole
from dpfed.federation.provisioning.network import Finding, State, of_certificate, of_connection, of_port
from dpfed.federation.provisioning.services import NODE_PORT
from dpfed.federation.provisioning.site_paths import KIT, SitePaths
from dpfed.federation.site.allowed import described_code
from dpfed.federation.site.folder import SiteFolder, refuse_too_few
from dpfed.federation.site.local_socket import refuse_open_folder
from dpfed.files.reading import read_bytes
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.promise import round_up
from dpfed.protocol.messages import PROTOCOL
from dpfed.protocol.named_code import refuse_other_code
from dpfed.protocol.terms import Terms

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_FOUND = "found, not compared yet (the coordinator compares them with its own when the site connects)"
_RESTORE = "restore it, if it was moved away; otherwise this site cannot continue: docs/a-site-in-15-minutes.md, Backups"


def examine_site(folder: Path) -> list[Finding]:
    """Checks a site that was set up from a kit. Nothing is changed.

    The checks concern versions, keys, certificate, the way to the coordinator, records, terms, code and budgets. Unless the
    site has left, they also concern the SuperNode's port, the socket's folder, and the site's copies of the terms' files.

    Args:
        folder: Folder of the kit.

    Returns:
        The findings.

    Raises:
        UserError: If the folder holds no site with a kit, or the kit is damaged or belongs to another site.
    """
    paths = SitePaths.open(folder)
    kit, site = paths.kit, paths.site
    ends = f"the federation ends when its certificate authority ({AUTHORITY}) expires: call the coordinator"
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("versions", lambda: _versions(kit.release, kit.protocol)),
        ("versions", lambda: _programs(paths)),
        ("keys", lambda: _keys(paths)),
        ("certificate", lambda: of_certificate(paths.path / AUTHORITY, ends)),
        ("coordinator", lambda: of_connection(kit.superlink, paths.path / AUTHORITY, paths.env())),
        ("store", lambda: _store(site)),
        ("terms", lambda: _terms(paths)),
        ("code", lambda: _code(paths)),
        ("budget", lambda: _budget(site)),
    ]
    if not site.left:
        checks += [("ports", lambda: _node_port(paths)), ("door", lambda: _socket(paths)), ("copies", lambda: _copies(site))]
    whole = Finding("kit", State.GOOD, f"{kit.federation}, {kit.site}, number {kit.serial}, as it was signed")
    return [whole, *(finding for name, check in checks for finding in _guarded(name, check))]


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Returns the findings of a check; an error that stops the check is a finding, too."""
    try:
        return list(check())
    except UserError as error:
        return [Finding(name, State.BAD, str(error), "see the message above")]
    except PermissionError as error:
        return [Finding(name, State.UNKNOWN, f"{error.filename} may not be read by this user", "run this command as its owner")]
    except OSError as error:
        advice = "restore it, or see docs/a-site-in-15-minutes.md"
        return [Finding(name, State.BAD, f"{error.filename}: {error.strerror or error}", advice)]


def _versions(release: str, protocol: int) -> Iterator[Finding]:
    here = f"dpfed {__version__}, protocol {PROTOCOL}"
    if protocol != PROTOCOL:
        said = f"{here}; the coordinator: {release}, protocol {protocol}"
        yield Finding("versions", State.BAD, said, f"install dpfed {release}")
    else:
        yield Finding("versions", State.GOOD, here)
    try:
        flower = version("flwr")
    except PackageNotFoundError:
        yield Finding("versions", State.BAD, "Flower is not installed", "pip install 'dpfed[flower]'")
        return
    fits = flower.startswith(f"{FLOWER_VERSION}.")
    advice = f"pip install 'flwr~={FLOWER_VERSION}.0'"
    yield Finding("versions", State.GOOD if fits else State.BAD, f"Flower {flower}", "" if fits else advice)


def _programs(paths: SitePaths) -> Iterator[Finding]:
    """Checks that the programs are where systemd's units look for them."""
    if not (paths.path / "venv" / "bin" / "python").exists():
        said = f"{paths.path / 'venv'} has no Python environment, and systemd's units start their programs from there"
        yield Finding("versions", State.CARE, said, f"ln -sfn ENVIRONMENT {paths.path / 'venv'}")


def _keys(paths: SitePaths) -> Iterator[Finding]:
    """Checks that the keys exist, are undamaged, and are closed to other users."""
    site, key_files = paths.site, [paths.site.path / "identity.key", paths.site.path / "secret.key"]
    secret = [site.path, paths.keys, *key_files, *(path for path in paths.keys.iterdir() if path.suffix != ".pub")]
    if exposed := [str(path) for path in secret if path.exists() and path.stat().st_mode & _OTHERS]:
        yield Finding("keys", State.BAD, f"other users may reach {', '.join(exposed)}", f"chmod go= {' '.join(exposed)}")
    else:
        yield Finding("keys", State.GOOD, "closed to other users")
    if not is_whole(paths.keys):
        again = f"run `dpfed site setup` again with {paths.path / KIT} and --into {paths.path.parent}"
        advice = f"restore it, or remove {paths.reply} and the SuperNode's keys, and {again}"
        yield Finding("keys", State.BAD, f"the key in {paths.keys} is damaged, or does not match node.pub", advice)
    for path in key_files[: 1 if site.left else 2]:
        read_bytes(path)  # raises PermissionError if this user may not
    if not site.left:
        site.randomness()
    if site.identity().signing_key != site.own_card().signing_key:
        yield Finding("keys", State.BAD, f"{key_files[0]} is not the key of the site's card", _RESTORE)


def _node_port(paths: SitePaths) -> Iterator[Finding]:
    port = paths.env().get("DPFED_PORT", str(NODE_PORT))
    if not port.isdecimal() or not 0 < int(port) < 65536:
        yield Finding("ports", State.BAD, f"DPFED_PORT in .env is {port!r}", "write a number from 1 to 65535")
        return
    advice = "start node and app; the SuperNode keeps ending and being restarted until the coordinator has registered its key"
    yield from of_port(int(port), "the SuperNode", advice)


def _socket(paths: SitePaths) -> Iterator[Finding]:
    """Checks that only the worker's user can put a socket where systemd's units look for it."""
    folder = paths.path / "door"
    refuse_open_folder(folder, paths.site.path.stat().st_uid)
    yield Finding("door", State.GOOD, f"{folder}, where only the worker's user can put a socket")


def _store(site: SiteFolder) -> Iterator[Finding]:
    settings = site.settings()
    store = RecordStore.open(settings.store)
    if not site.left:
        site.refuse_other_records(store)
    refuse_too_few(site.own_card().records, store, f"{site.card}: records =")
    said = f"{settings.store}, {store.training_records:,} training records, fingerprint {store.contents}"
    yield Finding("store", State.GOOD, said)


def _terms(paths: SitePaths) -> Iterator[Finding]:
    site = paths.site
    if site.left:
        yield Finding("terms", State.CARE, "this site has left its federation permanently", "stop SuperNode and worker")
        return
    site.refuse_lost_terms()
    if not site.joined:
        there = paths.kit.terms is not None
        said = "the kit contains terms, but the site has not joined" if there else "the kit does not contain terms yet"
        wait = f"send {paths.reply} to the coordinator; the next kit comes when all sites have replied"
        yield Finding("terms", State.CARE, said, f"dpfed site join {paths.path} {paths.path}" if there else wait)
        return
    terms, known = site.terms(), site.confirmed()
    others = [member.name for member in terms.sites if member.name != site.own_card().name and member.fingerprint not in known]
    if others and terms.trust_model.shared:
        said = f"{terms.fingerprint}; the cards of {', '.join(others)} are not confirmed"
        yield Finding("terms", State.CARE, said, f"call them, then: dpfed site confirm {paths.path} FINGERPRINTS")
    else:
        yield Finding("terms", State.GOOD, f"{terms.fingerprint}, {terms.trust}, {len(terms.sites)} sites")


def _code(paths: SitePaths) -> Iterator[Finding]:
    """Checks that the code that the terms name is installed here and was allowed; imports none of that code."""
    site, text = paths.site, paths.kit.terms
    if site.left or not site.joined and text is None:
        return
    try:
        terms = site.terms() if site.joined else Terms.model_validate(text)
    except ValidationError:
        said = f"dpfed {__version__} cannot read the terms in the kit"
        yield Finding("code", State.BAD, said, f"install the coordinator's release, dpfed {paths.kit.release}")
        return
    if site.joined:
        site.refuse_code(terms)
    else:
        refuse_other_code(terms.code)
    options = " ".join(f"--allow {part.name}" for part in terms.code)
    for _, said in described_code(terms):
        if site.joined:
            yield Finding("code", State.GOOD, f"as agreed on, and allowed: {said}")
        else:
            advice = f"read that code; if it may run here: dpfed site join {paths.path} {paths.path} {options}"
            yield Finding("code", State.CARE, f"the terms name {said}", advice)


def _copies(site: SiteFolder) -> Iterator[Finding]:
    """Checks the site's copies of files that the terms name and that are not sent, such as public records."""
    if site.joined:
        from dpfed.federation.site.serving import require_copies  # with torch, which takes seconds

        copies = require_copies(site.terms(), site.settings())
        for said, compared in (("as agreed on", True), (_FOUND, False)):
            if keys := [key for key, is_compared in copies.items() if is_compared is compared]:
                yield Finding("copies", State.GOOD, f"{said}: {', '.join(keys)}")


def _budget(site: SiteFolder) -> Iterator[Finding]:
    """Reports the spent and the allowed budget, and whether the next step can be charged."""
    settings = site.settings()
    if settings.budget is None:
        advice = f"write `budget = 8.0` into {site.path / 'site.toml'}"
        yield Finding("budget", State.CARE, "the site has set no upper limit for epsilon", advice)
    for entry in budgets_of(RecordStore.open(settings.store)):
        taken = percent(entry.budget.filter.part(entry.budget.spent))
        yield Finding("budget", State.GOOD, f"lifetime budget {shown(entry.budget)}: {taken} is taken")
    if not site.joined:
        return
    if not os.path.lexists(site.ledger):
        if site.left:
            return
        yield Finding("budget", State.BAD, f"{site.ledger} is missing: what the site has spent is not known", _RESTORE)
        return
    ledger = Ledger.open(site.ledger)
    plan = ledger.plan
    if not site.left:
        site.refuse_cost(site.terms().privacy_plan)
        if not site.ledger.stat().st_mode & stat.S_IWUSR:
            said = f"{site.ledger} cannot be written, so no step can be charged"
            yield Finding("budget", State.BAD, said, f"chmod u+w {site.ledger}")
    spent = f"epsilon {round_up(ledger.epsilon)} of {round_up(plan.epsilon())} is spent, {ledger.charged} of {plan.steps} steps"
    yield Finding("budget", State.GOOD, f"{spent}, at delta {round_up(plan.promise.delta)}")
