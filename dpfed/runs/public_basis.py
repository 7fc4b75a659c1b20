"""Chooses, makes and keeps the public basis of a run of private moments: a projection of each tower's features.

dpfed makes a basis once for a pair of towers, from the features of public records, and keeps it in ``data.stores``. dpfed
writes the basis's fingerprint into the run's configuration before it computes the features of any private record.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import nn

from dpfed.bounding.methods.moments import BASIS_ROWS
from dpfed.building.method import options_of
from dpfed.building.model import model_of
from dpfed.config import AdaptationConfig, Config
from dpfed.data.generated.things import things_path, things_store
from dpfed.data.opening import refuse_other_squares
from dpfed.data.public_store import given_public, refuse_shared
from dpfed.data.store.records import RecordStore
from dpfed.data.views.record_views import RecordViews
from dpfed.errors import UserError
from dpfed.evaluation.features import frozen
from dpfed.features.cache import Features
from dpfed.features.extraction import FeatureCache, features_key
from dpfed.files.atomic import write_atomically
from dpfed.models.basis import FEWEST_PUBLIC, MOST_PUBLIC, Basis, Side, fingerprint, principal_basis, read, written
from dpfed.models.building import tokenizer_for
from dpfed.models.images import preprocessing_of
from dpfed.models.moments import keep_towers
from dpfed.paths import is_store
from dpfed.privacy.method import method_named
from dpfed.progress import Progress, import_progress
from dpfed.runs.record_views import record_views
from dpfed.runs.resolution import changed, pick_device

if TYPE_CHECKING:
    from dpfed.protocol.terms import Terms

GENERATED = 2000  # number of generated pictures, and of words
_VERSION = 1  # version of the algorithm, part of the name under which a basis is kept
_FOLDER = "bases"  # folder in data.stores
Kind = Literal["generated", "store", "random"]


@dataclass(frozen=True)
class PublicBasis:
    """A public basis: for each tower, a map of its features that was computed from public records (`dpfed.models.basis`).

    Attributes:
        kind: Kind of the basis: the records that it was made from.
        content: The towers' bases, serialised by `dpfed.models.basis.written`.
    """

    kind: Kind
    content: bytes

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all numbers in the towers' bases."""
        return fingerprint(self.content)

    @property
    def bases(self) -> dict[Side, Basis]:
        """The basis of each tower.

        Raises:
            UserError: If `content` does not hold a basis, for example because the terms of a federation are damaged.
        """
        try:
            return read(self.content)
        except ValueError as error:
            raise UserError(
                f"this public basis is damaged, so it cannot be used ({error}): the coordinator has to propose new terms. "
                "[basis-damaged]"
            ) from error

    @property
    def text(self) -> str:
        """The basis in base64, the form in which the terms of a federation hold it."""
        return base64.b64encode(self.content).decode()


def kind_of(config: Config) -> Kind:
    """Returns the kind of basis that a run of private moments uses.

    Raises:
        UserError: If the configuration asks for a public basis or for several layers of a tower, although the towers are
            aligned already or there is only an image tower.
    """
    given: Kind | None = options_of(config).basis
    if not config.is_aligned:
        return given or "generated"
    if given not in (None, "random"):
        raise UserError(
            f"bounding.options.basis = '{given}' is only for an image tower and a text tower that were never aligned (kind = "
            "'image-text' without model.start). Leave the option out. [basis-aligned]"
        )
    if options_of(config).layers == "several":
        raise UserError(
            "bounding.options.layers = 'several' is only for an image tower and a text tower that were never aligned (kind = "
            "'image-text' without model.start). Leave the option out. [layers-aligned]"
        )
    return "random"


def basis_in(terms: Terms) -> PublicBasis | None:
    """Returns the basis that the terms of a federation hold; ``None``: the federation's sites use a random basis."""
    return None if terms.basis is None else PublicBasis(kind_of(terms.run_config()), base64.b64decode(terms.basis))


def with_basis(config: Config, basis: PublicBasis | None) -> Config:
    """Returns the configuration with the fingerprint of the basis; without a basis, the configuration as it is."""
    if basis is None:
        return config
    return changed(config, bounding={"options": dict(config.bounding.options) | {"basis_digest": basis.fingerprint}})


def proposed_basis(config: Config, private: RecordStore, progress: Progress) -> PublicBasis | None:
    """Makes the basis for the terms of a federation; ``None``: the federation's sites use a random basis, or no basis.

    Args:
        config: Configuration with its defaults resolved.
        private: Records of the party that proposes the terms.
        progress: Progress, which shows the stages.

    Raises:
        UserError: See `public_basis`.
    """
    if not method_named(config.bounding.method).closed_form or kind_of(config) == "random":
        return None
    model = model_of(config, adaptation=AdaptationConfig(image="frozen", text="frozen"))
    views = record_views(config, tokenizer_for(config.model))
    return public_basis(config, model, views, private, pick_device(config.training.device), progress)


def public_basis(
    config: Config, model: nn.Module, views: RecordViews, private: RecordStore, device: torch.device, progress: Progress
) -> PublicBasis | None:
    """Returns the basis of a run, and makes it on first use; ``None``: the run uses a random basis.

    Args:
        config: Configuration with its defaults resolved; if it has a fingerprint, the basis must match it.
        model: Model with its towers, on the CPU; this call removes the layers that follow the towers (`keep_towers`).
        views: Views, which make the towers' inputs from records.
        private: Records of the run (or of the coordinator); none of their images may be in the public store.
        device: Device that computes the features.
        progress: Progress, which shows the stages.

    Raises:
        UserError: If the public store cannot be used, or the basis differs from the fingerprint.
    """
    kind, agreed, folder = kind_of(config), options_of(config).basis_digest, Path(config.data.stores) / _FOLDER
    if kind == "random":
        return None
    if agreed is not None and (kept := _kept(folder, agreed)) is not None:
        return PublicBasis(kind, kept)
    store = _store(config, kind, progress)
    if kind == "store":
        refuse_shared(store, private, config.data.stores)
    keep_towers(model, aligned=False, several_layers=options_of(config).layers == "several")
    rows, most = _public_rows(store), max(BASIS_ROWS, options_of(config).dimensions)
    named = _name(model, views, store, most)
    content = _of_this_machine(folder, named)
    if content is None:
        progress.note(f"making the public basis of these towers from {len(rows):,} public records, once")
        content = written(_made(FeatureCache(None, progress).features(model.to(device), views, store, rows), most))
        model.cpu()
        with contextlib.suppress(OSError):  # if the basis cannot be kept, the next run makes it again
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / f"{fingerprint(content)}.safetensors", content)
            write_atomically(folder / named, fingerprint(content))
    if agreed not in (None, fingerprint(content)):
        raise UserError(
            "the public basis (bounding.options.basis) that this machine makes is not the one that the run was started with "
            f"(fingerprint {agreed}): restore {folder / agreed}.safetensors, or start a new run. [basis-changed]"
        )
    return PublicBasis(kind, content)


def is_generated_basis_made(config: Config, model: nn.Module, views: RecordViews) -> bool:
    """Returns whether this machine has made the generated basis of the model's towers before.

    Args:
        config: Configuration with its defaults resolved.
        model: Model after `keep_towers`, as a run uses it.
        views: Views that make the towers' inputs from records.
    """
    path = things_path(GENERATED, config.data.stores, config.data.size or 0)
    if not is_store(path):
        return False
    named = _name(model, views, RecordStore.open(path), max(BASIS_ROWS, options_of(config).dimensions))
    return _of_this_machine(Path(config.data.stores) / _FOLDER, named) is not None


def _public_rows(store: RecordStore) -> np.ndarray:
    rows = store.split("train")
    return rows[np.argsort(store.keys[rows])][:MOST_PUBLIC]


def _name(model: nn.Module, views: RecordViews, store: RecordStore, most: int) -> str:
    """Returns the name under which a basis is kept; it depends on towers, preprocessing and public records."""
    with frozen(model):
        key = features_key(model, views, store, _public_rows(store))
    return hashlib.blake2b(f"{_VERSION} {key} {most}".encode(), digest_size=8).hexdigest()


def _store(config: Config, kind: Kind, progress: Progress) -> RecordStore:
    """Opens or generates the public records from which a basis of this kind is made."""
    if config.data.size is None:
        raise ValueError("the configuration has no data.size: call dpfed.runs.resolution.resolve_model_defaults first")
    if kind == "generated":
        return things_store(GENERATED, config.data.stores, config.data.size, import_progress(progress, "public pictures"))
    store = given_public(config.public, config.model.reads_text)
    refuse_other_squares(store, config.data.resize, preprocessing_of(config.model, config.data.resize).interpolation)
    if store.count("train") < FEWEST_PUBLIC:
        raise UserError(
            f"a public basis needs {FEWEST_PUBLIC} records or more, but {store.path} (public.path) has "
            f"{store.count('train'):,} training records: give a larger store, or leave bounding.options.basis out. [basis-few]"
        )
    return store


def _made(features: Features, most: int) -> dict[Side, Basis]:
    """Computes the towers' bases from public features."""
    shards = list(features.shards())
    made: dict[Side, Basis] = {"image": principal_basis(torch.cat([shard.image[:, 0] for shard in shards]), most)}
    texts = [shard.text for shard in shards if shard.text is not None]
    if texts:
        made["text"] = principal_basis(torch.cat(texts), most)
    return made


def _kept(folder: Path, name: str) -> bytes | None:
    """Reads a kept basis by its fingerprint; ``None``: no such basis is kept, or it is damaged."""
    try:
        content = (folder / f"{name}.safetensors").read_bytes()
    except OSError:
        return None
    return content if fingerprint(content) == name else None


def _of_this_machine(folder: Path, named: str) -> bytes | None:
    """Reads the basis that this machine made earlier from the same features; ``None``: there is none, or it is damaged."""
    try:
        return _kept(folder, (folder / named).read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        return None
