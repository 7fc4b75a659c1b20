"""A site at work: loads records and model once, then answers at its door until it is stopped."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from dpfed.budgets.refusals import percent, shown
from dpfed.data.own_rows import OwnRows
from dpfed.errors import UserError
from dpfed.federation.budgeting import reserve_site, settle_locked
from dpfed.federation.leaving import refuse_if_left
from dpfed.federation.site.folder import SiteFolder, refuse_too_few
from dpfed.federation.site.local_socket import serve
from dpfed.federation.site.own_config import site_config
from dpfed.federation.site.worker import SiteWorker
from dpfed.privacy.ledger import Ledger
from dpfed.progress import Silent
from dpfed.runs.assembly import Share, assemble
from dpfed.runs.remarks import say_sizes
from dpfed.runs.resolution import resolve


def serve_site(
    folder: SiteFolder, door: Path, log: Callable[[str], None], stop: threading.Event, group: str | None = None
) -> None:
    """Answers questions at the site's door until `stop` is set.

    Args:
        folder: of a site that has joined a federation.
        door: path of the Unix socket.
        log: told what the site's operator should see; nothing of it leaves the site.
        stop: ends the service.
        group: whose members may knock, too; by default only this user.

    Raises:
        UserError: if the site cannot be served as it is.
    """
    with folder.locked():
        refuse_if_left(folder.path)
        worker = load_site(folder, log)
        log("ready")
        serve(door, worker.answer, stop, group, worker.longest)
        ledger = Ledger.open(folder.ledger)
        if ledger.last_step + 1 >= ledger.plan.steps:  # it will not be asked again
            shutil.rmtree(folder.features, ignore_errors=True)
            for book in settle_locked(folder):
                log(f"settled with the lifetime budget {shown(book)}: {percent(book.filter.part(book.spent))} of it is taken")


def load_site(folder: SiteFolder, log: Callable[[str], None]) -> SiteWorker:
    """The worker of a site, with its records, its model and its ledger.

    Raises:
        UserError: if one of them cannot be opened.
    """
    terms, settings, identity, randomness = folder.terms(), folder.settings(), folder.identity(), folder.randomness()
    number = terms.number_of(identity.signing_key)
    folder.refuse_cost(terms.privacy_plan)  # its operator may have lowered the budget since
    parts = assemble(resolve(site_config(terms, settings)), randomness, terms=terms)
    parts = dataclasses.replace(parts, kept=(folder.features, Silent()))
    say_sizes(parts, log)
    # The store may have grown since the site was made.
    refuse_too_few(terms.sites[number].records, parts.store, f"{folder.card} declares")
    share = Share(number, OwnRows(parts.store, parts.store.keys), terms.sites[number].groups)
    worker = parts.worker(randomness, share=share)
    ledger = Ledger.open(folder.ledger)
    for book in reserve_site(folder, terms, parts.store):
        log(f"lifetime budget {shown(book)}: {percent(book.filter.part(book.spent))} of it is taken")
    ledger.require_current()
    if ledger.plan.fingerprint != terms.privacy_plan.fingerprint:
        raise UserError(f"{folder.ledger} was started for another plan than that of the terms: restore the one that was.")
    return SiteWorker(terms, identity, worker, parts.model, ledger, randomness, log)
