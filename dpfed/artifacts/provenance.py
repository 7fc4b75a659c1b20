"""The provenance of a run: its id, first day, code, hardware and records.

No part of the provenance may depend on the records that a private step drew. A run's duration depends on them, so neither the
duration nor the end of the run is recorded (docs/guarantee.md, Limits). The first day is known before the first step.

This module also names the ways in which a run may disclose private records beyond the model; ``disclosures.json`` of the run
lists those that apply.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpfed import __version__
from dpfed.privacy.promise import round_up
from dpfed.report.facts import STARTING_WEIGHTS, CardFacts, started_privately

if TYPE_CHECKING:
    from dpfed.config import DataConfig
    from dpfed.data.record_set import RecordSet

_PACKAGES = ("torch", "numpy", "dp-accounting")
_SETTINGS = {"shapes": ("records", "half"), "procedural": ("records",)}  # recorded settings of generated records
ID_CHARACTERS = 16
LEDGER, MODEL = (
    "Hash of the ledger",
    "SHA-256 of the model's weights",
)  # rows of the card, which `dpfed.artifacts.verification` reads
# What is known of the training of weights whose file does not record it.
UNKNOWN: dict[str, Any] = {"run": None, "data": None, "public": None, "generated": False, "guarantee": None}
NO_DURATION = "not written: how long a step takes depends on its records, and no epsilon covers that"


def began(
    store: RecordSet,
    config: DataConfig,
    public: RecordSet | None = None,
    start: dict[str, Any] | None = None,
    own: Mapping[str, str] | None = None,
    key: bytes = b"",
    settings: Mapping[str, str] | None = None,
) -> str:
    """Returns the text of ``provenance.json`` for a run that begins today.

    Args:
        store: Records of the run.
        config: Configuration of the data.
        public: Public records that are added to every group; ``None``: the run uses no public records.
        start: Origin of the starting weights (`dpfed.runs.starts.origin_of`); ``None``: the run has no starting weights.
        own: Descriptions of the user's own parts, by their keys in the configuration.
        key: Key of the run, with which the contents of a data set are hashed; see `contents_of`.
        settings: Settings of the user's own parts; a resumed run must have the same.
    """
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    facts = {"began": today, "data": data_facts(store, config, key), "environments": [environment()]}
    if public is not None:
        facts["public"] = {"name": public.name, "records": public.training_records, "fingerprint": public.contents}
    if start is not None:
        facts["start"] = start
    if own:
        facts["own"] = dict(own)
    if settings:
        facts["settings"] = dict(settings)
    return json.dumps(facts, indent=1) + "\n"


def environment() -> dict[str, Any]:
    """Returns the code, hardware and versions of this process."""
    versions = {"dpfed": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"commit": commit(), "hardware": hardware(), "versions": versions}


def commit() -> str | None:
    """Returns the git commit of the running dpfed, with ``-dirty`` if its code was changed; ``None``: git names no commit."""
    root = Path(__file__).resolve().parents[2]
    # An installed package may be inside another repository, whose commit would not identify dpfed's code.
    if not (root / ".git").exists() or not (root / "pyproject.toml").is_file() or shutil.which("git") is None:
        return None
    head = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--", "dpfed")
    return head and head + ("-dirty" if changed else "")


def _git(root: Path, *arguments: str) -> str | None:
    # GIT_DIR and similar variables, as inside a hook, would name another repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=root, env=variables, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def hardware() -> str:
    """Describes the processor, the number of cores that torch uses, and the GPU."""
    import torch

    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    for line in information.read_text(errors="replace").splitlines() if information.exists() else []:
        if line.startswith("model name"):
            model = line.split(":")[1].strip()
            break
    cores = torch.get_num_threads()
    accelerator = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{cores} core{'s' * (cores != 1)} of {model}{accelerator}"


def data_facts(store: RecordSet, config: DataConfig, key: bytes = b"") -> dict[str, Any]:
    """Returns the facts about the records that ``provenance.json`` holds.

    They are the records' name, their fingerprint, whether the fingerprint is keyed, and the settings of generated records. If
    the fingerprint of private records is not keyed, it is replaced by ``None``; in this case, the hash of `contents_of` is
    added if there is a `key`.

    Args:
        store: Records of the run.
        config: Configuration of the data.
        key: Key of the run, see `contents_of`.
    """
    names = _SETTINGS.get(config.source)
    settings = names and {name: getattr(config, name) for name in names}
    keyed = store.contents_key is not None
    # If the records were declared private after the import, a plain hash would be an exact function of private records.
    fingerprint = store.contents if keyed or store.public else None
    facts = {"name": store.name, "fingerprint": fingerprint, "keyed": keyed, "generated": settings}
    return facts if fingerprint is not None or not key else {**facts, "contents": contents_of(store, key)}


def contents_of(store: RecordSet, key: bytes) -> str:
    """Returns a keyed hash of a data set's contents; a resumed run recognises its data set by this hash.

    Args:
        store: Records of the run.
        key: Key of the run, which the run deletes at its end. Without the key, the hash looks like a random number.
    """
    return hashlib.blake2b(store.contents.encode(), key=key, digest_size=16).hexdigest()


def rows(identity: str, facts: dict[str, Any], federation: bool = False) -> Iterator[tuple[str, str]]:
    """Yields the names and values of the rows of the privacy card that state the provenance.

    Args:
        identity: Unique identity of the run.
        facts: Contents of the run's ``provenance.json``.
        federation: Whether the training records are those of several sites.
    """
    yield "Run id", identity[:ID_CHARACTERS]
    yield "Began on", f"{facts['began']} (UTC)"
    data = facts["data"]
    name = data["name"]
    if data["generated"]:
        name += f", generated by dpfed ({', '.join(f'{key} = {value}' for key, value in data['generated'].items())})"
    yield ("Held-out data set" if federation else "Data set"), name
    yield "Its fingerprint", _fingerprint(data)
    if federation:
        yield "Training data sets", "at the sites; `dpfed data inspect STORE` shows each site its own fingerprint"
    if public := facts.get("public"):
        yield "Public records in every group", f"of {public['name']}, {public['records']:,} records"
        yield (
            "Their fingerprint",
            f"{public['fingerprint']} (of a record store, `dpfed data inspect STORE --check` computes it again)",
        )
    if start := facts.get("start"):
        yield "Starting weights", f"{start['weights']}, SHA-256 {start['sha256']}"
        for run in start["trained"] or [UNKNOWN]:
            yield "They were trained on", _words(run)
    for key, said in (facts.get("own") or {}).items():
        yield f"Part of the user's own: {key}", said
    for number, made in enumerate(facts["environments"]):
        suffix = " (resumed)" if number else ""
        versions = ", ".join(f"{package} {version}" for package, version in made["versions"].items())
        yield f"Code{suffix}", made["commit"] or "no checkout; see the versions"
        yield f"Hardware{suffix}", made["hardware"] + (" (coordinator)" if federation else "")
        yield f"Versions{suffix}", versions
    yield "Duration", NO_DURATION


def _fingerprint(data: dict[str, Any]) -> str:
    if data["fingerprint"] is None:
        return (
            "not published: it was computed without a secret key, so somebody could use it to test guesses of the records. "
            "Records that `dpfed data import` writes as private get a keyed fingerprint"
        )
    if data["keyed"]:
        return f"{data['fingerprint']} (keyed: only somebody with the store can check it: `dpfed data inspect STORE --check`)"
    return f"{data['fingerprint']} (of public records; of a record store, `dpfed data inspect STORE --check` computes it again)"


def with_origin(facts: CardFacts, start: dict[str, Any] | None) -> CardFacts:
    """Returns the facts of a run's card, adapted to the data on which the run's starting weights were trained.

    Each private run that trained these weights adds a mark (`dpfed.report.facts.Mark`) to the card. If these weights were
    trained on generated data only, the card does not list the data of the starting weights as unprotected.

    Args:
        facts: Facts of the run's card.
        start: Origin of the starting weights (`dpfed.runs.starts.origin_of`); ``None``: the run has no starting weights.
    """
    if start is None:
        return facts
    runs = start["trained"] or [UNKNOWN]
    kept = facts.not_protected
    if all(run["generated"] for run in runs):  # generated records hold no person's data
        kept = tuple(item for item in kept if item != STARTING_WEIGHTS)
    marks = tuple(
        started_privately(run["run"], run["data"], round_up(run["epsilon"]), round_up(run["delta"]))
        for run in runs
        if run["guarantee"] and not run["public"]
    )
    return dataclasses.replace(facts, not_protected=kept, marks=facts.marks + marks)


def _words(run: dict[str, Any]) -> str:
    if run["public"] is None:
        return "not known: the file does not say"
    if run["generated"]:
        return f"{run['data']}: generated by dpfed from a public seed; no record was read"
    named = f"{run['data']}, by run {run['run']}"
    if run["public"]:
        return f"{named}; whoever imported the records declared them public"
    return f"{named}, with epsilon {round_up(run['epsilon'])} and delta {round_up(run['delta'])} for one {run['unit']}"


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Data(_Facts):
    name: str
    fingerprint: str | None
    keyed: bool
    generated: dict[str, Any] | None


class _Public(_Facts):
    name: str
    records: int
    fingerprint: str | None


class _Environment(_Facts):
    commit: str | None
    hardware: str
    versions: dict[str, str]


class _Trained(_Facts):
    run: str | None
    data: str | None
    public: bool | None
    generated: bool
    guarantee: bool | None
    epsilon: float | None = Field(None, ge=0)
    delta: float | None = Field(None, gt=0, lt=1)
    unit: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> _Trained:
        if self.guarantee and None in (self.epsilon, self.delta, self.unit):
            raise ValueError("a guarantee needs epsilon, delta and unit, and one of them is missing")
        return self


class _Start(_Facts):
    weights: str
    sha256: str
    trained: list[_Trained] | None


class _Provenance(_Facts):
    began: str
    data: _Data
    environments: list[_Environment] = Field(min_length=1)
    public: _Public | None = None
    start: _Start | None = None
    own: dict[str, str] | None = None


def wrong_provenance(facts: object) -> str | None:
    """Returns the first key that is missing or malformed, such as ``data.fingerprint``; ``None``: all keys are valid."""
    try:
        _Provenance.model_validate(facts)
    except ValidationError as error:
        return ".".join(map(str, error.errors()[0]["loc"])) or "all of it"
    return None


LABELLED_FIGURES = "labelled-figures"
"""Disclosure: metrics were computed from the labels of private training records (k-NN, linear probe)."""
AUDITED = "audited"
"""Disclosure: an audit used the run's own training records to attack it."""

_TASKS = ("knn", "linear")
_FIGURES = ("knn", "linear_probe")


def uses_labelled_bank(tasks: Iterable[str] = (), figures: Iterable[str] = ()) -> bool:
    """Returns whether one of the tasks or figures is computed from labels of training records (k-NN, linear probe)."""
    return any(task in _TASKS for task in tasks) or any(name.startswith(_FIGURES) for name in figures)
