"""Serves a site: loads records and model once, then answers requests at the site's socket until the process is stopped.

The module also makes the agreed configuration for a site's own machine, with its own records, device and copies of files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpfed import discovery
from dpfed.budgets.refusals import percent, shown
from dpfed.config import Config, DataConfig, EvaluationConfig
from dpfed.console.interruption import until_asked
from dpfed.data.sampling import PartitionRows
from dpfed.errors import UserError
from dpfed.federation.budgeting import reserve_site, settle_locked
from dpfed.federation.site.folder import SiteFolder, SiteSettings, refuse_too_few
from dpfed.federation.site.local_socket import serve
from dpfed.federation.site.worker import SiteWorker
from dpfed.models.options import PROCEDURAL
from dpfed.models.timm_blueprints import timm_blueprint
from dpfed.paths import is_store
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.method import method_named
from dpfed.protocol.terms import Terms
from dpfed.runs.build import build, record_store
from dpfed.runs.resolution import resolve_defaults, resolve_model_defaults
from dpfed.runs.starts import start_is_there, starting_weights
from dpfed.training.learner import Partition


def site_config(terms: Terms, settings: SiteSettings) -> Config:
    """Returns the agreed configuration with this site's own records, device, engine and copies of files."""
    config = terms.run_config()
    size, resize, keep = config.data.size, config.data.resize, settings.keep_features
    data = DataConfig(source="store", path=settings.store, size=size, resize=resize, keep_features=keep)
    bounding = config.bounding if settings.engine == "auto" else config.bounding.model_copy(update={"engine": settings.engine})
    files = {
        name: value for name in ("weights", "architecture", "text", "anchors", "start") if (value := getattr(settings, name))
    }
    if "start" not in files and not _freezes(config):  # the coordinator sends all weights with every step
        files |= {"start": None, "start_digest": None}
    model = config.model.model_copy(update=files)
    public = config.public if settings.public is None else config.public.model_copy(update={"path": settings.public})
    return config.model_copy(
        update={
            "data": data,
            "bounding": bounding,
            "model": model,
            "public": public,
            "training": config.training.model_copy(update={"device": settings.device}),
            "evaluation": EvaluationConfig(split="none"),
        }
    )


def _freezes(config: Config) -> bool:
    """Returns whether some weights of the model never change: these are not sent, so a site needs its own copy."""
    model, adaptation = config.model, config.adaptation
    if method_named(config.bounding.method).closed_form:
        return True
    towers = {adaptation.of_images(model.kind), *([adaptation.text] if model.kind == "open_clip" else [])}
    statistics = model.timm is not None and timm_blueprint(model).has_batch_norm  # statistics of a pretrained encoder
    return (model.external and towers != {"full"}) or statistics or model.pretrained_text is not None


def require_copies(terms: Terms, settings: SiteSettings) -> dict[str, bool]:
    """Checks a site's own copies of files that the terms name. The coordinator does not send them; the service needs them.

    The terms hold no digest of the anchors, so anchors are only read here; the coordinator compares them when it greets the
    site. Weights other than the starting weights are not compared.

    Returns:
        By configuration key, such as ``public.path``: ``True`` for a copy that is the agreed file, ``False`` for a copy that
        was only read. The keys are those of public records, architecture, starting weights and anchors, where the terms name
        them.

    Raises:
        UserError: If public records, starting weights or anchors are missing (the message names all of them), another file is
            missing, anchors cannot be used, or public records, architecture or starting weights are not those that were agreed
            on.
    """
    config = site_config(terms, settings)
    named, anchors = terms.run_config(), config.model.anchors
    public = method_named(config.bounding.method).public_records and config.public.source == "store"
    lacking = {
        "public": settings.public is None and public and f"the public records '{named.public.path}'",
        "start": settings.start is None and config.model.start and f"the starting weights '{named.model.start}'",
        "anchors": anchors and not is_store(Path(anchors).expanduser()) and f"the anchors '{named.model.anchors}'",
    }
    if config.model.start == PROCEDURAL and start_is_there(resolve_model_defaults(config)):
        lacking["start"] = False
    if any(lacking.values()):
        what = [f"{what} (`{key}`)" for key, what in lacking.items() if what]
        raise UserError(
            f"{' and '.join(what)} of the terms are not sent to sites: get a copy, and name its path in site.toml. [site-copy]"
        )
    config = resolve_defaults(config)
    starting_weights(config)
    agreed = {f"model.{name}": getattr(config.model, name) for name in ("architecture", "start")}
    agreed["public.path"] = config.public.digest if public else None  # records of a basis stay with the party that made it
    copies = {key: True for key, value in agreed.items() if value is not None}
    if anchors is not None:
        anchored = discovery.part("baselines", "anchored_batch_norm")
        anchored.anchor_images(anchors, config.model.anchor_count, config.data.size)
        copies["model.anchors"] = False
    return copies


def serve_site(folder: SiteFolder, socket: Path, log: Callable[[str], None], group: str | None = None) -> None:
    """Answers requests at the site's socket until this process is asked to end (SIGINT, SIGTERM).

    Args:
        folder: Folder of a site that has joined a federation.
        socket: Path of the Unix socket.
        log: Function that receives messages for the site's operator; they stay at the site.
        group: Name of the group whose members may connect, too; default: only this user.

    Raises:
        UserError: If the site has left or another process serves it, if it cannot be loaded (see `load_site`), or if the socket
            cannot be made (see `dpfed.federation.site.local_socket.serve`).
    """
    with folder.locked():
        folder.refuse_if_left()
        worker = load_site(folder, log)
        log(f"ready: {folder.own_card().records:,} training records declared{_records_of(folder)}")
        is_settled = False

        def settle_once() -> None:
            nonlocal is_settled
            if worker.is_over and not is_settled:  # the service may go on for months
                is_settled = True
                _settle(folder, log)

        with until_asked() as stop:
            serve(socket, worker.answer, stop, group, worker.longest, settle_once)
            if worker.is_over:
                if not is_settled:
                    _settle(folder, log)
                folder.forget_features()


def _settle(folder: SiteFolder, log: Callable[[str], None]) -> None:
    """Settles with the lifetime budgets, see `settle_site`. Errors are only logged: the site continues to answer."""
    try:
        for budget in settle_locked(folder):
            taken = percent(budget.filter.part(budget.spent))
            log(f"settled with the lifetime budget {shown(budget)}: {taken} of it is taken")
    except (UserError, OSError) as error:
        log(f"the lifetime budget could not be settled; `dpfed budget settle {folder.path}` tries again. {error}")


def _records_of(folder: SiteFolder) -> str:
    contents = folder.own_card().contents
    return f", their fingerprint {contents}" if contents else ""


def load_site(folder: SiteFolder, log: Callable[[str], None]) -> SiteWorker:
    """Loads the worker of a site, with the site's records, model and ledger.

    Args:
        folder: Folder of a site that has joined a federation.
        log: Function that receives messages for the site's operator.

    Raises:
        UserError: If the site's files cannot be opened or do not fit the terms, if the terms name code that was not allowed, or
            if the plan costs more than the site or the lifetime budget of its records allows.
    """
    terms = folder.terms()
    settings = folder.settings()
    identity = folder.identity()
    randomness = folder.randomness()
    number = terms.number_of(identity.signing_key)
    folder.refuse_code(terms)  # before any of that code is imported
    folder.refuse_cost(terms.privacy_plan)  # the operator may have lowered the budget since
    parts = build(site_config(terms, settings), randomness, terms=terms, features=folder.features)
    store = record_store(parts.store)
    folder.refuse_other_records(store)
    # The store may have grown since the site was made.
    refuse_too_few(terms.sites[number].records, store, f"{folder.card}: records =")
    partition = Partition(number, PartitionRows(store, store.keys), terms.sites[number].groups)
    worker = parts.learner.worker(randomness, partition)
    ledger = Ledger.open(folder.ledger)
    for budget in reserve_site(folder, terms, store):
        log(f"lifetime budget {shown(budget)}: {percent(budget.filter.part(budget.spent))} of it is taken")
    ledger.require_current()
    if ledger.plan.fingerprint != terms.privacy_plan.fingerprint:
        raise UserError(
            f"{folder.ledger} is the ledger of another plan than the one in the terms: restore the right ledger. [site-ledger]"
        )
    return SiteWorker(terms, identity, worker, parts.model, ledger, randomness, log)
