"""Opens the records that a configuration names.

This module also makes the paths of a configuration absolute, so that it means the same files wherever it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dpfed.config import Config
from dpfed.data.importers import ImportProgress
from dpfed.data.opening import open_records
from dpfed.data.public_store import open_public, public_fingerprint
from dpfed.data.store.records import RecordStore
from dpfed.files.shipped import find_tower
from dpfed.models.blueprints import LOCAL_DIR
from dpfed.models.description import TIMM_CONFIG
from dpfed.models.images import preprocessing_of
from dpfed.models.options import PROCEDURAL
from dpfed.paths import path_of
from dpfed.privacy.method import method_named


def records_of(config: Config, progress: ImportProgress | None = None, say: Callable[[str], None] | None = None) -> RecordStore:
    """Opens the records that a configuration names, with images as its model expects them; see `open_records`.

    Args:
        config: Configuration with its defaults resolved.
        progress: Function that is called while records are imported.
        say: Function that receives a message about each kind of data that an import did not use.
    """
    return open_records(config.data, progress, preprocessing_of(config.model, config.data.resize).interpolation, say)


def public_records_of(config: Config, private: RecordStore, progress: ImportProgress | None = None) -> RecordStore | None:
    """Opens the public records that are added to every group; see `open_public`.

    Args:
        config: Configuration with its defaults resolved.
        private: Open records of the run.
        progress: Function that is called while records are generated.

    Returns:
        The public records; ``None``: the method uses none.
    """
    if not method_named(config.bounding.method).public_records:
        return None
    wanted = preprocessing_of(config.model, config.data.resize).interpolation
    return open_public(config.public, config.data, private, config.model.reads_text, wanted, progress)


def public_digest(config: Config) -> str | None:
    """Returns the fingerprint of the public store that a configuration reads, or else the configured ``public.digest``.

    The store is not read again once a public basis has been made from it: the result is then ``public.digest``, too.

    Args:
        config: Configuration with absolute paths.

    Raises:
        UserError: See `public_fingerprint`.
    """
    if config.has_public_basis and config.bounding.options.get("basis_digest"):
        return config.public.digest  # the basis was made, and its records are not read again
    return public_fingerprint(config.public) if config.reads_public_store else config.public.digest


def with_absolute_paths(config: Config) -> Config:
    """Returns the configuration with absolute paths, so that it means the same files wherever it is read.

    Files that dpfed ships keep their names.

    Raises:
        UserError: If ``data.path``, ``data.stores`` or ``public.path`` is not a path, for example because it is an address.
    """
    data = config.data
    path = None if data.path is None else str(path_of(data.path, "data.path").expanduser().resolve())
    data = data.model_copy(update={"path": path})
    if "data.stores" not in config.without_effect():
        data = data.model_copy(update={"stores": str(path_of(data.stores, "data.stores").expanduser().resolve())})
    model = config.model
    if model.weights is not None:
        weights = Path(model.weights.removeprefix(LOCAL_DIR)).expanduser()
        if weights.is_file() or model.timm is not None and (weights / TIMM_CONFIG).is_file():
            model = model.model_copy(update={"weights": str(weights.resolve())})
    if model.pretrained_text and (text := Path(model.text.removeprefix(LOCAL_DIR)).expanduser()).is_dir():
        model = model.model_copy(update={"text": str(text.resolve())})
    if model.anchors is not None:
        model = model.model_copy(update={"anchors": str(Path(model.anchors).expanduser().resolve())})
    if model.start is not None and model.start != PROCEDURAL:
        model = model.model_copy(update={"start": os.path.abspath(os.path.expanduser(model.start))})
    name = model.architecture or ""
    if name.startswith(LOCAL_DIR) or (name.endswith(".json") and find_tower(name) is None):
        prefix = LOCAL_DIR if name.startswith(LOCAL_DIR) else ""
        architecture = Path(name.removeprefix(LOCAL_DIR)).expanduser().resolve()
        model = model.model_copy(update={"architecture": f"{prefix}{architecture}"})
    public = config.public
    if public.path is not None:
        public = public.model_copy(update={"path": str(path_of(public.path, "public.path").expanduser().resolve())})
    return config.model_copy(update={"data": data, "model": model, "public": public})
