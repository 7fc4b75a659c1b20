"""The terms of a federation: everything that its sites agree to. Every message names the hash of the terms.

The terms hold the configuration, the privacy plan, the trust mode, and the sites with their public keys and numbers of records.
They hold no private record and no code. Where they name code, they hold its version and hash; where ``[model]`` or ``[public]``
has an absolute path, they hold only the last part of the path. A site that has joined a federation answers only requests that
name these terms.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from dpfed.building.plan import describes, plan_of
from dpfed.config import Config, DataConfig, Section, first_problem, read_back
from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically
from dpfed.files.reading import read_text
from dpfed.models.blueprints import LOCAL_DIR
from dpfed.objectives import FOREIGN, OBJECTIVES
from dpfed.privacy.method import FOREIGN_METHODS
from dpfed.privacy.plan import PrivacyPlan
from dpfed.protocol.cards import KEY, SiteCard, hidden_text
from dpfed.protocol.identity import is_exchange_key
from dpfed.protocol.named_code import NamedCode, code_of, names_of, refuse_own_records, refuse_parts_of_python
from dpfed.protocol.trust import Mode, Trust
from dpfed.schema.section import Items

# Keys of [data] in the terms: those that shape the model's input. Each party decides where its records are.
_AGREED_DATA = ("size", "resize")
# Keys of [model] that name files: the files' contents are compared, and each party decides where its copies are.
_FILES = ("architecture", "weights", "text", "anchors", "start")


class Member(SiteCard):
    """A site as the terms list it: its card, and its number of groups."""

    groups: int = Field(ge=1, description="K_w: number of the K groups that are this site's own")


class Terms(Section):
    """The agreed terms of a federation. `Terms.agree` makes them, `Terms.load` reads them."""

    format: Literal[1] = 1
    config: dict[str, Any]
    plan: dict[str, Any]
    trust: Mode = "central"
    drops: int = Field(0, ge=0, description="d: sites that may drop out of a step (trust = 'distributed' or 'secure')")
    colluders: int = Field(1, ge=0, description="c: sites that may collude (trust = 'distributed' or 'secure')")
    deadline: float = Field(120.0, ge=0.1, le=86_400, description="seconds that a step waits for the slowest site")
    broadcast: Literal["fp32", "bf16"] = Field("fp32", description="format in which parameters travel to the sites")
    coordinator: str = KEY
    basis: str | None = Field(None, description="the public basis of private moments, base64 of a safetensors file")
    sites: Items[Member] = Field(min_length=1)
    code: Items[NamedCode] = Field((), description="code that the configuration names, and every party calls")

    @model_validator(mode="after")
    def _refuse_foreign_method(self) -> Terms:
        """Refuses a method of another package before it is looked up: the lookup would run that package's code."""
        bounding = self.config.get("bounding")
        given = [self.plan.get("method_name"), bounding.get("method") if isinstance(bounding, dict) else None]
        for name in given:
            if isinstance(name, str) and name in FOREIGN_METHODS:
                raise UserError(
                    f"bounding.method = {name!r}: the terms of a federation cannot name the method "
                    f"{FOREIGN_METHODS[name].said}, whose proof dpfed has not reviewed. Set one of dpfed's own methods. "
                    "[terms-foreign-method]"
                )
        return self

    @classmethod
    def agree(cls, config: Config, cards: list[SiteCard], coordinator: str, **options: Any) -> Terms:
        """Makes the terms for the given sites.

        Args:
            config: Configuration of the run, its defaults resolved (`dpfed.runs.resolution.resolve_defaults`); ``[data]`` and
                ``[evaluation]`` are the coordinator's own. Of ``[data]``, the terms hold ``size`` and ``resize``. They also
                hold ``[evaluation]``. Sites ignore that section, but it changes the fingerprint of the terms, and so the noise,
                which each site draws with its secret key and this fingerprint.
            cards: Cards of the sites; their order determines the sites' numbers.
            coordinator: Public signing key of the coordinator, hex.
            options: Further fields: ``trust``, ``drops``, ``colluders``, ``deadline``, ``broadcast``, ``basis``.

        Raises:
            UserError: If the plan is impossible, the sites cannot work together, or the configuration names records or code
                that terms cannot name.
            ValueError: If ``data.size`` is not set, because the configuration's defaults are not resolved.
        """
        if config.data.size is None:
            raise ValueError("the configuration has no data.size: call dpfed.runs.resolution.resolve_defaults first")
        by_unit = config.privacy.unit == "user"
        for card in cards:
            if by_unit and card.units is None:
                raise UserError(
                    f"privacy.unit = 'user', but the records of {card.name} name no units. Set privacy.unit = 'record', or ask "
                    "that site for records that name units. [terms-no-units]"
                )
        counts = [(card.units or 0) if by_unit else card.records for card in cards]
        plan = plan_of(sum(counts), config)
        sites = [
            Member(**card.model_dump(), groups=groups) for card, groups in zip(cards, plan.apportioned(counts), strict=True)
        ]
        kept = config.data.model_dump(include=set(_AGREED_DATA))
        model = config.model.model_copy(update={name: _without_folder(getattr(config.model, name)) for name in _FILES})
        public = config.public.model_copy(update={"path": _without_folder(config.public.path)})
        shared = config.model_copy(update={"data": DataConfig(**kept), "model": model, "public": public})
        agreed = shared.model_dump(mode="json", exclude_defaults=True)
        fields = {"config": agreed, "plan": plan.as_dict(), "sites": sites, "code": code_of(config)}
        return cls._checked({**fields, "coordinator": coordinator, **options})

    @classmethod
    def load(cls, path: str | Path) -> Terms:
        """Reads a file of terms and checks that they are consistent.

        Raises:
            UserError: If the terms cannot be read, have characters that terminals do not show, are not valid, or contradict
                themselves.
        """
        try:
            tree = json.loads(read_text(Path(path)))
            if hidden := hidden_text(tree):
                raise UserError(f"{path} holds characters that terminals do not show ({hidden}): do not join. [terms-hidden]")
            return cls._checked(tree)
        except OSError as error:
            raise UserError(f"cannot read the terms {path}: {error.strerror or error}. [terms-unread]") from error
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path} does not contain the terms of a federation: `dpfed federation provision` writes terms.json. "
                "[terms-format]"
            ) from error

    def save(self, path: Path) -> None:
        """Writes the terms to a file that must not exist.

        Raises:
            UserError: If the file exists.
        """
        if path.exists():
            raise UserError(f"{path} exists: terms are never changed; choose another folder. [terms-exist]")
        write_atomically(path, self.text)

    @property
    def text(self) -> str:
        """The content of a file of terms."""
        left_out = None if self.code else {"code"}  # the text of terms without code is that of earlier releases
        return self.model_dump_json(indent=1, exclude=left_out) + "\n"

    @classmethod
    def _checked(cls, tree: Any) -> Terms:
        """Returns the terms in a JSON tree, after checking that their fields agree with each other.

        Raises:
            UserError: If a field is invalid, or fields contradict each other.
        """
        try:
            terms = cls.model_validate(tree)
            plan = terms.privacy_plan
        except (ValidationError, TypeError) as error:
            odd = "the plan has unknown or missing fields" if isinstance(error, TypeError) else first_problem(error)
            raise UserError(f"these are not valid terms of a federation: {odd}. [terms-invalid]") from error
        terms.trust_model  # noqa: B018 refuses impossible numbers
        config, sites = terms.run_config(), terms.sites
        _refuse_foreign_loss(config)
        refuse_own_records(config)
        refuse_parts_of_python(config)
        counts = [(site.units or 0) if plan.promise.unit == "user" else site.records for site in sites]
        _check(
            names_of(config) == {part.key: part.name for part in terms.code},
            "the parts under `code` are not those that the configuration names",
        )
        _check(describes(config, plan), "the plan is not the one that follows from the configuration")
        unnamed = plan.bounding.method.public_records and config.public.source == "store" and config.public.digest is None
        _check(not unnamed, "the public records have no fingerprint")
        basis, named = _basis_digest(terms.basis), config.bounding.options.get("basis_digest")
        _check(basis == named, "the public basis is not the one that the configuration names")
        unhashed = config.model.start is not None and config.model.start_digest is None
        _check(not unhashed, "the starting weights have no digest")
        counted = "units" if plan.promise.unit == "user" else "records"
        _check(all(counts), f"a site has no {counted}")
        _check(sum(counts) == plan.sampling.records, f"the sites' numbers of {counted} do not add up to the plan's N")
        _check([site.groups for site in sites] == plan.apportioned(counts), f"the groups are not shared out by {counted}")
        _check(plan.private or terms.trust == "central", "without privacy, trust must be 'central'")
        _check(all(map(is_exchange_key, (site.exchange_key for site in sites))), "an exchange key is not valid")
        for what in ("name", "signing_key", "exchange_key"):
            _check(len({getattr(site, what) for site in sites}) == len(sites), f"two sites have the same {what}")
        return terms

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of all fields, 32 hex digits."""
        tree = self.model_dump(mode="json")
        for site in tree["sites"]:  # without this field, the hash is that of earlier releases
            if site["contents"] is None:
                del site["contents"]
        if tree["basis"] is None:  # left out like `contents`
            del tree["basis"]
        if not tree["code"]:
            del tree["code"]
        text = json.dumps(tree, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @functools.cached_property
    def privacy_plan(self) -> PrivacyPlan:
        """The privacy plan, one for all sites."""
        return PrivacyPlan.from_dict(self.plan)

    @property
    def trust_model(self) -> Trust:
        """The trust mode, with the numbers of sites that may drop out and collude."""
        return Trust(self.trust, len(self.sites), self.drops, self.colluders)

    @property
    def unit_name(self) -> str | None:
        """Name of a privacy unit, such as 'patient', from the first card that has such a name; ``None``: no card has one."""
        return next((site.unit_name for site in self.sites if site.unit_name), None)

    def run_config(self) -> Config:
        """Returns the agreed configuration. It does not say where private records are; each party sets that for itself."""
        return read_back(self.config, "the terms' config")

    def number_of(self, signing_key: str) -> int:
        """Returns the number of the site with a public signing key (hex).

        Raises:
            UserError: If no site has that key.
        """
        for number, site in enumerate(self.sites):
            if site.signing_key == signing_key:
                return number
        raise UserError(
            "the terms name no site with this site's key. Ask the coordinator for terms that hold this site's card (name and "
            "public keys). [terms-other-key]"
        )


def _without_folder(name: str | None) -> str | None:
    """Returns the last part of an absolute path; other names stay as they are."""
    if name is None or "/" not in name or not Path(name.removeprefix(LOCAL_DIR)).is_absolute():
        return name
    return (LOCAL_DIR if name.startswith(LOCAL_DIR) else "") + Path(name).name


def _basis_digest(basis: str | None) -> str | None:
    """Returns the digest that `dpfed.models.basis.fingerprint` gives to a basis, without importing torch."""
    if basis is None:
        return None
    try:
        return hashlib.sha256(base64.b64decode(basis, validate=True)).hexdigest()[:32]
    except ValueError as error:
        raise UserError("these are not valid terms of a federation: their basis is not base64. [terms-basis]") from error


def _refuse_foreign_loss(config: Config) -> None:
    """Refuses another package's loss that is named without its module, when terms are made or read.

    The terms would hold no hash of the loss's code, and each party would run its own copy unchecked.
    """
    if config.objective.name not in FOREIGN:
        return
    loss, known = FOREIGN[config.objective.name].said, ", ".join(map(repr, sorted(OBJECTIVES.keys() - FOREIGN.keys())))
    raise UserError(
        f"objective.name = {loss}: the terms of a federation can name another package's loss only as 'package.module:Loss'. "
        f"Give such a name, or set one of {known}. [terms-foreign-loss]"
    )


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"these terms contradict themselves: {message}. [terms-contradiction]")
