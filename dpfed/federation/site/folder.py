"""A site's files: its settings, its keys, the terms that it joined, and its ledger."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, ValidationError, field_validator

from dpfed.config import Config, PublicConfig, Section, first_problem
from dpfed.data.public_store import public_fingerprint
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.federation.budgeting import reserve_site
from dpfed.federation.confirmed_cards import confirm, confirmed_in, refuse_strangers
from dpfed.federation.own_folder import own_folder
from dpfed.federation.site.allowed import keep_allowed, refuse_unallowed, refuse_unknown
from dpfed.files.atomic import create_file, sync_folder, write_atomically
from dpfed.files.locking import noted_lock
from dpfed.files.reading import read_bytes
from dpfed.files.toml_file import read_toml
from dpfed.models.options import PROCEDURAL
from dpfed.models.starting import find_start
from dpfed.paths import local_path
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.plan_checks import MOST_RECORDS, require_within
from dpfed.privacy.promise import round_up
from dpfed.privacy.randomness import KEY_BYTES, Randomness
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.identity import Identity
from dpfed.protocol.statement import epsilon_if_known
from dpfed.protocol.terms import Terms
from dpfed.runs.records import with_absolute_paths


class SiteSettings(Section):
    """A site's own settings, kept in its folder (``site.toml``)."""

    name: str
    store: str
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    engine: Literal["auto", "loop", "layerwise"] = "auto"
    weights: str | None = Field(None, description="this site's copy of model.weights")
    architecture: str | None = Field(None, description="this site's copy of model.architecture, where that is a file or folder")
    text: str | None = Field(None, description="this site's copy of model.text, where that is a folder")
    anchors: str | None = Field(None, description="this site's copy of model.anchors")
    start: str | None = Field(
        None, description="this site's copy of the starting weights, needed only if weights are frozen or a tower is adapted"
    )
    public: str | None = Field(None, description="this site's copy of public.path")
    keep_features: bool = Field(True, description="keep the features of frozen towers beside the store, for later runs")
    budget: float | None = Field(None, gt=0, description="the largest epsilon that the site agrees to")
    delta: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="the largest delta that the site agrees to; default: 1/N, with N records or units in the plan",
    )

    @field_validator("keep_features", mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value  # `dpfed site setup --set`


class SiteFolder:
    """One site: its settings, its keys, the terms that it joined, its ledger, and the socket where requests arrive.

    Attributes:
        path: Folder of the site, which only its owner can read.
        card: File of the site's public card, for the coordinator.
        socket: Default path of the Unix socket; the file exists while the site is served.
        ledger: File of the site's ledger.
        features: Folder of those cached features of frozen towers that are not kept beside the store. The folder is deleted
            when the service ends after the site's last step, or when the site leaves.
    """

    def __init__(self, path: Path) -> None:
        self.path = local_path(path, "the folder of a site or a coordinator")
        self.card = self.path / "card.json"
        self.socket = self.path / "door" / "socket"
        self.ledger, self.features = self.path / "ledger.jsonl", self.path / "features"
        self._settings, self._terms, self._left = self.path / "site.toml", self.path / "terms.json", self.path / "left.json"
        self._confirmed, self._allowed = self.path / "confirmed.json", self.path / "allowed.json"
        self._identity, self._randomness = self.path / "identity.key", self.path / "secret.key"

    @classmethod
    def create(cls, path: str | Path, name: str, store: str | Path, declared: int | None = None, **settings: Any) -> SiteFolder:
        """Makes a site's folder with new keys, and its card.

        Args:
            path: Path of the new folder, which must not exist.
            name: Name of the site in the federation.
            store: Store of the site's records.
            declared: Number of training records to declare; default: the true number. A larger number hides the true one.
            settings: Further `SiteSettings`.

        Returns:
            The new folder.

        Raises:
            UserError: If the folder exists, a setting is impossible, or the records do not fit, see `records_of_site`.
        """
        folder, records = cls(Path(path)), records_of_site(store, declared, settings)
        chosen = _chosen(name, store, settings | _absolute(settings))
        try:
            identity = Identity.fresh()
            card = SiteCard(
                name=name,
                records=records.training_records if declared is None else declared,
                units=records.training_units,
                unit_name=records.unit_name,
                signing_key=identity.signing_key,
                exchange_key=identity.exchange_key,
                contents=records.contents,
            )
        except ValidationError as error:
            raise UserError(f"{first_problem(error)}. [site-new-settings]") from error
        with own_folder(folder.path) as draft:
            new = cls(draft)
            identity.save(new._identity)
            Identity.fresh().save(new._randomness)
            create_file(new._settings, tomli_w.dumps(chosen.model_dump(exclude_none=True)))
            create_file(new.card, card.model_dump_json(indent=1, exclude_none=True) + "\n")
        return folder

    @classmethod
    def open(cls, path: str | Path) -> SiteFolder:
        """Opens a site's folder; given the folder of a kit, opens the site's folder in it.

        Raises:
            UserError: If the folder is not a site's.
        """
        folder, of_kit = cls(Path(path)), cls(Path(path) / "site")
        if not folder._settings.is_file() and of_kit._settings.is_file():
            return of_kit
        if not folder._settings.is_file():
            raise UserError(f"{path} is not a site: `dpfed site setup KIT` makes one. [site-missing]")
        return folder

    @property
    def joined(self) -> bool:
        """Whether the site has joined a federation."""
        return self._terms.is_file()

    def own_card(self) -> SiteCard:
        """Returns the site's card.

        Raises:
            UserError: If the file of the card cannot be read, or is damaged.
        """
        return SiteCard.load(self.card)

    def confirm(self, cards: list[str]) -> None:
        """Keeps fingerprints of other sites' cards; see `dpfed.federation.confirmed_cards.confirm` for argument and errors."""
        confirm(self._confirmed, cards, self.own_card(), self.terms() if self.joined else None)

    def confirmed(self) -> list[str]:
        """Returns the fingerprints of the cards that the site's operator has confirmed.

        Raises:
            UserError: If their file is damaged.
        """
        return confirmed_in(self._confirmed)

    def settings(self) -> SiteSettings:
        """Returns the site's settings.

        Raises:
            UserError: If the file of the settings cannot be read, or a setting is unknown or impossible.
        """
        try:
            return SiteSettings.model_validate(read_toml(self._settings, "site settings"))
        except ValidationError as error:
            raise UserError(f"{self._settings}: {first_problem(error)}. [site-settings]") from error

    def identity(self) -> Identity:
        """Reads the site's long-term cryptographic keys, for signatures and for agreeing on secrets.

        Raises:
            UserError: If the file of the keys cannot be read, or is damaged.
        """
        return Identity.load(self._identity)

    def randomness(self) -> Randomness:
        """Returns the site's secret randomness. Whoever holds it can remove the site's noise.

        Raises:
            UserError: If the secret cannot be read, or is damaged.
        """
        try:
            secret = read_bytes(self._randomness)
        except OSError as error:
            raise UserError(
                f"cannot read {self._randomness}: {error.strerror or error}; without it the site cannot continue: "
                "docs/a-site-in-15-minutes.md, Backups. [site-secret]"
            ) from error
        if len(secret) != KEY_BYTES:
            raise UserError(
                f"{self._randomness} is damaged: expected {KEY_BYTES} bytes, got {len(secret)}; without it the site cannot "
                "continue: docs/a-site-in-15-minutes.md, Backups. [site-secret-size]"
            )
        return Randomness(secret)

    def terms(self) -> Terms:
        """Returns the terms of the federation that the site joined.

        Raises:
            UserError: If the site has joined no federation, or the terms cannot be read or are damaged.
        """
        if not self.joined:
            raise UserError(f"{self.path} has joined no federation: `dpfed site join FOLDER KIT` joins one. [site-not-joined]")
        return Terms.load(self._terms)

    def join(
        self,
        terms: Terms,
        agreed: Callable[[Terms], bool] | None = None,
        unconfirmed: bool = False,
        allowed: Collection[str] = (),
    ) -> bool:
        """Joins a federation: from now on the site answers requests under these terms, and under no others.

        Args:
            terms: Terms of the federation.
            agreed: Function that decides whether to join. It is called after all checks except that of the lifetime budget,
                before anything is reserved. Default: the site joins.
            unconfirmed: Whether to join even if dishonest members, among those whose cards this site has not confirmed, could
                make the terms spend more than the site's budget; default: no.
            allowed: Names of code that may run at this site, see `refuse_unknown`.

        Returns:
            ``True`` if the site has joined; ``False`` if `agreed` decided against it.

        Raises:
            UserError: If the terms do not have this site's card; if the site has joined before or has left; if the terms
                promise no privacy, fix a seed, spend more than the site allows (or could do so, see `unconfirmed`), lack a
                card that the site has confirmed, or name code that `refuse_unknown` refuses; if the records are no longer those
                of the site's card; if the ledger holds charged steps; or if the plan does not fit into the lifetime budget of
                the records.
        """
        number = terms.number_of(self.identity().signing_key)
        card = self.own_card()
        if card != SiteCard(**terms.sites[number].model_dump(exclude={"groups"})):
            raise UserError(
                f"the terms describe this site differently from {self.card}: ask the coordinator for terms with this card. "
                "[join-card]"
            )
        refuse_strangers(terms, self.confirmed(), self._confirmed)
        self.refuse_if_left()
        self.refuse_other_records(RecordStore.open(self.settings().store))
        if self.joined:
            raise UserError(
                f"{self.path} has joined a federation already: make another folder for another federation. [join-twice]"
            )
        plan = terms.privacy_plan
        if not plan.has_guarantee:
            name = plan.bounding.method_name
            raise UserError(f"these terms promise no privacy (bounding.method = '{name}'): do not join them. [join-no-privacy]")
        if terms.run_config().privacy.seed is not None:
            raise UserError("these terms fix privacy.seed, so anyone can compute the noise: do not join them. [join-seed]")
        self.refuse_cost(plan)
        if not unconfirmed:
            self._refuse_worst_case(terms, number)
        self.refuse_lost_terms()
        refuse_unknown(terms, allowed)
        if agreed is not None and not agreed(terms):
            return False
        self.ledger.unlink(missing_ok=True)  # the rest of an attempt that a crash cut short
        keep_allowed(self._allowed, terms)
        reserve_site(self, terms)
        Ledger.create(self.ledger, plan)
        terms.save(self._terms)
        return True

    def refuse_code(self, terms: Terms) -> None:
        """Refuses terms that name code that the operator has not allowed, or that has changed since then.

        Raises:
            UserError: If the terms name such code, see `refuse_unallowed`.
        """
        refuse_unallowed(self._allowed, terms)

    def refuse_lost_terms(self) -> None:
        """Refuses a site whose ledger has charged steps, but whose terms are missing.

        Raises:
            UserError: If the ledger was charged and there are no terms.
        """
        if not self.joined and self.ledger.exists() and Ledger.open(self.ledger).charged:
            raise UserError(f"{self.ledger} holds charged steps whose terms are gone: restore {self._terms}. [join-charged]")

    def refuse_cost(self, plan: PrivacyPlan) -> None:
        """Refuses a plan that spends more than the site's present settings allow.

        Raises:
            UserError: If the plan spends too much; the message has the numbers.
        """
        budget = self.settings().budget
        if budget is not None and not plan.epsilon() <= budget:
            raise UserError(
                f"these terms spend epsilon {round_up(plan.epsilon())}; this site allows {budget!r}: take no part, or raise "
                "`budget` in site.toml if you agree to more. [join-budget]"
            )
        if (delta := plan.promise.delta) > self.most_delta(plan):
            raise UserError(
                f"these terms have delta {round_up(delta)}, but this site agrees to {round_up(self.most_delta(plan))} at "
                "most (`delta` in site.toml; by default 1/N): an epsilon is worth nothing beside a large delta. [join-delta]"
            )

    def _refuse_worst_case(self, terms: Terms, number: int) -> None:
        """Refuses terms that spend more than the site allows if members with unconfirmed cards lie.

        Raises:
            UserError: If the terms would spend too much; the message has the numbers, and says what to do.
        """
        budget = self.settings().budget
        if budget is None or (left := epsilon_if_known(terms, number, self.confirmed())) <= budget:
            return
        known = self.confirmed()
        others = [member.name for at, member in enumerate(terms.sites) if at != number and member.fingerprint not in known]
        spent = f"epsilon {round_up(left)}" if math.isfinite(left) else "an epsilon without limit"
        raise UserError(
            f"the cards of {', '.join(others)} are not confirmed: if these members and the coordinator collude, the terms "
            f"spend {spent}, but this site allows {budget!r}. Telephone the members, and confirm their cards with `dpfed site "
            "confirm`; or add --unconfirmed to join without confirmation. [join-unconfirmed]"
        )

    def refuse_other_records(self, store: RecordStore) -> None:
        """Refuses records that are not those of the site's card.

        Raises:
            UserError: If the records differ; the message says what to restore.
        """
        card = self.own_card()
        if card.contents not in (None, store.contents):
            raise UserError(
                f"{store.path} holds other records than when {self.card} was made: the records' fingerprint was "
                f"{card.contents} and is {store.contents}, with {store.training_records:,} training records now. Nobody agreed "
                "to them: restore the store, or leave (`dpfed site leave`) and make a new site. [site-records-changed]"
            )

    def leave(self) -> None:
        """Leaves permanently: destroys the secret of the site's draws and noise, so that nobody can remove the noise any more.

        Cached features are deleted, too. The ledger, and reservations in the records' lifetime budget, are not touched: what
        was spent stays spent.

        Raises:
            UserError: If another process serves the site, or the cached features cannot be deleted.
        """
        with self.locked():
            if not self.left:
                write_atomically(self._left, "{}\n")
            self._randomness.unlink(missing_ok=True)
            sync_folder(self.path)
            self.forget_features()

    @property
    def left(self) -> bool:
        """Whether the site has left its federation."""
        return os.path.lexists(self._left)

    def refuse_if_left(self) -> None:
        """Refuses a site that has left.

        Raises:
            UserError: If the site has left.
        """
        if self.left:
            raise UserError(f"{self.path} left its federation permanently: make a new site for another federation. [site-left]")

    def forget_features(self) -> None:
        """Deletes cached features.

        Raises:
            UserError: If the features cannot be deleted.
        """
        shutil.rmtree(self.features, ignore_errors=True)
        if self.features.exists():
            raise UserError(
                f"dpfed cannot delete {self.features}, which reveals as much as the records: delete it. [site-features]"
            )

    def most_delta(self, plan: PrivacyPlan) -> float:
        """Returns the largest delta that the site agrees to: the setting ``delta``, or 1 / (records or units of the plan)."""
        delta = self.settings().delta
        return 1 / plan.sampling.records if delta is None else delta

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Locks the site for this process.

        Raises:
            UserError: If another process serves the site.
        """
        return noted_lock(self.path / ".lock", f"{self.path} is served by another process: stop that process first.")


def records_of_site(store: str | Path, declared: int | None, settings: dict[str, Any]) -> RecordStore:
    """Opens a site's records, and checks the site's settings and the copies of files that the settings name.

    Args:
        store: Store of the records.
        declared: Number of training records to declare; ``None``: the true number.
        settings: Settings of the site, see `SiteFolder.create`.

    Raises:
        UserError: If a setting is impossible, a file cannot be opened, or too few or too many records are declared.
    """
    _chosen("-", store, settings)
    records = RecordStore.open(store)
    refuse_too_few(declared, records, "--declared")
    require_within("--declared", declared or 1, 1, MOST_RECORDS)
    if settings.get("public") is not None:
        public_fingerprint(PublicConfig(source="store", path=settings["public"]))
    if settings.get("start") not in (None, PROCEDURAL):
        find_start(settings["start"])
    return records


def _chosen(name: str, store: str | Path, settings: dict[str, Any]) -> SiteSettings:
    """Returns the settings of a new site.

    Raises:
        UserError: If a setting is unknown or impossible.
    """
    try:
        return SiteSettings(name=name, store=str(Path(store).absolute()), **settings)
    except ValidationError as error:
        raise UserError(f"{first_problem(error)}. [site-card-settings]") from error


def _absolute(settings: dict[str, Any]) -> dict[str, str | None]:
    """Makes the paths of a site's copies of files (weights, public records ...) absolute.

    The site can then be served from any folder.

    Args:
        settings: Settings of the site, see `SiteFolder.create`.

    Returns:
        The settings that name these files, with absolute paths.
    """
    default = Config()
    paths = ("architecture", "weights", "start", "text", "anchors")
    model = {key: settings[key] for key in paths if settings.get(key) is not None}
    if "architecture" in model or "text" in model:
        model["kind"] = "open_clip" if "architecture" in model else "image-text"
    public = default.public.model_copy(update={"path": settings.get("public")})
    config = with_absolute_paths(default.model_copy(update={"model": default.model.model_copy(update=model), "public": public}))
    return {key: getattr(config.model, key) for key in model if key != "kind"} | {"public": config.public.path}


def refuse_too_few(declared: int | None, store: RecordStore, where: str) -> None:
    """Refuses a declared number of records that is smaller than the true one.

    With a smaller number, the plan would not count all records that take part, and the sampling rate and delta that follow from
    the count would be wrong. A larger number hides the true one and costs a little noise.

    Args:
        declared: Declared number of training records; ``None``: none was declared.
        store: Store of the records.
        where: Name of the option or entry that declares the number; the message begins with this name.

    Raises:
        UserError: If the number is too small; the message has both numbers.
    """
    if declared is not None and declared < store.training_records:
        raise UserError(
            f"{where} {declared:,} is less than the {store.training_records:,} training records of {store.path}: declare "
            "at least as many; a larger number hides the true one. [site-declared-few]"
        )
