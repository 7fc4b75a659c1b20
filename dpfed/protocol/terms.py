"""The terms of a federation: everything that its sites sign up to, and whose hash every message names.

They hold the configuration, the privacy plan, who adds the noise, and the sites with their public keys and numbers of records;
no data, no path, and no code: of code that they name, they hold a hash. A site that joined them answers no other question.
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

# Of [data], only what shapes the model's input is agreed on: where records are is each party's own matter.
_AGREED_DATA = ("size", "resize")
# Of [model]: what they hold is compared, where they lie is each party's own matter.
_FILES = ("architecture", "weights", "text", "anchors", "start")


class Member(SiteCard):
    """A site in the terms."""

    groups: int = Field(ge=1, description="K_w: how many of the K groups are its own")


class Terms(Section):
    """What a federation agreed on. Make them with `Terms.agree`, read them with `Terms.load`."""

    format: Literal[1] = 1
    config: dict[str, Any]
    plan: dict[str, Any]
    trust: Mode = "central"
    drops: int = Field(0, ge=0, description="d: sites that may drop out of a step (distributed and secure)")
    colluders: int = Field(1, ge=0, description="c: sites that may pool what they know (distributed and secure)")
    deadline: float = Field(120.0, ge=0.1, le=86_400, description="seconds that a step waits for the slowest site")
    broadcast: Literal["fp32", "bf16"] = Field("fp32", description="how parameters travel to the sites; sums are always fp32")
    coordinator: str = KEY
    basis: str | None = Field(None, description="the public basis of private moments, base64 of a safetensors file")
    sites: Items[Member] = Field(min_length=1)
    code: Items[NamedCode] = Field((), description="that the configuration names, and every party calls")

    @model_validator(mode="after")
    def _refuse_foreign_method(self) -> Terms:
        """Refuses a method of another package before anything is asked of it: to look at one is to run that package's code."""
        bounding = self.config.get("bounding")
        given = [self.plan.get("method_name"), bounding.get("method") if isinstance(bounding, dict) else None]
        for name in given:
            if isinstance(name, str) and name in FOREIGN_METHODS:
                raise UserError(
                    f"bounding.method = {name!r}: the terms of a federation cannot name the method "
                    f"{FOREIGN_METHODS[name].said}, whose proof nobody here has read. Set one of dpfed's own. "
                    "[terms-foreign-method]"
                )
        return self

    @classmethod
    def agree(cls, config: Config, cards: list[SiteCard], coordinator: str, **options: Any) -> Terms:
        """Terms for some sites.

        Args:
            config: of the run, its defaults resolved (`dpfed.runs.resolution.resolve_defaults`); its ``[data]`` and
                ``[evaluation]`` are the coordinator's own.
            cards: of the sites, in an order that will count.
            coordinator: its public signing key.
            options: ``trust``, ``drops``, ``colluders``, ``deadline``, ``broadcast``, ``basis``.

        Raises:
            UserError: for an impossible plan, or sites that cannot work together.
        """
        if config.data.size is None:
            raise ValueError("not resolved: what the sites compute must not depend on where")
        by_unit = config.privacy.unit == "user"
        for card in cards:
            if by_unit and card.units is None:
                raise UserError(f"privacy.unit = 'user', and the records of {card.name} name no units. [terms-no-units]")
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
        found = {"config": agreed, "plan": plan.as_dict(), "sites": sites, "code": code_of(config)}
        return cls._checked({**found, "coordinator": coordinator, **options})

    @classmethod
    def load(cls, path: str | Path) -> Terms:
        """Reads a file of terms and checks that they fit together.

        Raises:
            UserError: if they cannot be read, or contradict themselves.
        """
        try:
            tree = json.loads(read_text(Path(path)))
            if found := hidden_text(tree):
                raise UserError(f"{path} holds characters that terminals do not show ({found}): do not join it. [terms-hidden]")
            return cls._checked(tree)
        except OSError as error:
            raise UserError(f"cannot read the terms {path}: {error.strerror or error}. [terms-unread]") from error
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path} holds no terms of a federation: `dpfed federation provision` writes terms.json. [terms-format]"
            ) from error

    def save(self, path: Path) -> None:
        """Writes the terms to a file that must not exist."""
        if path.exists():
            raise UserError(f"{path} exists: terms are never changed; choose another folder. [terms-exist]")
        write_atomically(path, self.text)

    @property
    def text(self) -> str:
        """The content of a file of terms."""
        left_out = None if self.code else {"code"}  # terms that name no code keep their text
        return self.model_dump_json(indent=1, exclude=left_out) + "\n"

    @classmethod
    def _checked(cls, tree: Any) -> Terms:
        try:
            terms = cls.model_validate(tree)
            plan = terms.privacy_plan
        except (ValidationError, TypeError) as error:
            odd = "the plan has unknown or missing fields" if isinstance(error, TypeError) else first_problem(error)
            raise UserError(f"these are no terms of a federation: {odd}. [terms-invalid]") from error
        terms.trust_model  # noqa: B018 refuses numbers that cannot be
        config, sites = terms.run_config(), terms.sites
        _refuse_foreign_loss(config)
        refuse_own_records(config)
        refuse_parts_of_python(config)
        counts = [(site.units or 0) if plan.promise.unit == "user" else site.records for site in sites]
        _check(names_of(config) == {part.key: part.name for part in terms.code}, "the hashes are those of other code")
        _check(describes(config, plan), "the plan is not the configuration's")
        unnamed = plan.bounding.method.public_records and config.public.source == "store" and config.public.digest is None
        _check(not unnamed, "the public records have no fingerprint")
        basis, named = _basis_digest(terms.basis), config.bounding.options.get("basis_digest")
        _check(basis == named, "the public basis is not the configuration's")
        unhashed = config.model.start is not None and config.model.start_digest is None
        _check(not unhashed, "the starting weights have no digest")
        _check(all(counts) and sum(counts) == plan.sampling.records, "the sites' records do not add up to the plan's")
        _check([site.groups for site in sites] == plan.apportioned(counts), "the groups are not shared out by records")
        _check(plan.private or terms.trust == "central", "without privacy there is no noise to share out")
        _check(all(map(is_exchange_key, (site.exchange_key for site in sites))), "an exchange key agrees on no secret")
        for what in ("name", "signing_key", "exchange_key"):
            _check(len({getattr(site, what) for site in sites}) == len(sites), f"two sites have the same {what}")
        return terms

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of all of it."""
        tree = self.model_dump(mode="json")
        for site in tree["sites"]:  # terms whose cards name no records keep their hash
            if site["contents"] is None:
                del site["contents"]
        if tree["basis"] is None:  # likewise
            del tree["basis"]
        if not tree["code"]:
            del tree["code"]
        text = json.dumps(tree, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @functools.cached_property
    def privacy_plan(self) -> PrivacyPlan:
        """The plan, which is one for all sites."""
        return PrivacyPlan.from_dict(self.plan)

    @property
    def trust_model(self) -> Trust:
        """Who adds the noise."""
        return Trust(self.trust, len(self.sites), self.drops, self.colluders)

    @property
    def unit_name(self) -> str | None:
        """What the sites call a unit; ``None``: their records name none."""
        return next((site.unit_name for site in self.sites if site.unit_name), None)

    def run_config(self) -> Config:
        """The configuration that was agreed on; its records and its evaluation are to be filled in."""
        return read_back(self.config, "the terms' config")

    def number_of(self, signing_key: str) -> int:
        """Which site has a key.

        Raises:
            UserError: if none has.
        """
        for number, site in enumerate(self.sites):
            if site.signing_key == signing_key:
                return number
        raise UserError("this site's key is not in the terms. Ask the coordinator for terms with its card. [terms-other-key]")


def _without_folder(name: str | None) -> str | None:
    """The last part of a path; other names stay as they are."""
    if name is None or "/" not in name or not Path(name.removeprefix(LOCAL_DIR)).is_absolute():
        return name
    return (LOCAL_DIR if name.startswith(LOCAL_DIR) else "") + Path(name).name


def _basis_digest(basis: str | None) -> str | None:
    """As `dpfed.models.basis.fingerprint` gives it, without torch."""
    if basis is None:
        return None
    try:
        return hashlib.sha256(base64.b64decode(basis, validate=True)).hexdigest()[:32]
    except ValueError as error:
        raise UserError("these are no terms of a federation: their basis is not base64. [terms-basis]") from error


def _refuse_foreign_loss(config: Config) -> None:
    """Refuses a loss of another package, on whichever side the terms are read: each party would run code of its own."""
    if config.objective.name not in FOREIGN:
        return
    loss, known = FOREIGN[config.objective.name].said, ", ".join(map(repr, sorted(OBJECTIVES.keys() - FOREIGN.keys())))
    raise UserError(
        f"objective.name = {loss}: the terms of a federation cannot hold another package's code. Set one of {known}. "
        "[terms-foreign-loss]"
    )


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"these terms contradict themselves: {message}. [terms-contradiction]")
