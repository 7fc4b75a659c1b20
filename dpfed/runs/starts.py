"""Finds the starting weights of a run, and the folder of a model's procedural initialisation.

Only `origin_of` imports torch, which takes seconds, so the other functions report mistakes immediately.

A procedural initialisation is an ordinary run without privacy on procedural images. It follows the recipe that dpfed ships
(``configs/start.toml``), with the model, views and objective of the configuration that needs it. It reads no record, and so
costs no privacy.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import AdaptationConfig, Config, parse_config
from dpfed.data.generated.dead_leaves import VERSION
from dpfed.errors import UserError
from dpfed.files.shipped import shipped_file
from dpfed.files.toml_file import read_toml
from dpfed.models.options import PROCEDURAL
from dpfed.models.starting import MissingStart, StartingWeights, find_start

RECIPE = "start"  # name of the shipped configuration
_FOLDER = "starts"  # folder in data.stores
_LOCAL_DIR = "local-dir:"
_COMMAND = "Give `dpfed start` the same configuration and --set options."


def starting_weights(config: Config) -> StartingWeights | None:
    """Returns the weights that ``model.start`` names; ``None``: it names none.

    Args:
        config: Configuration. If the start is procedural, its model's defaults must be resolved
            (`dpfed.runs.resolution.resolve_model_defaults`).

    Raises:
        MissingStart: If the configuration names weights that do not exist, or a procedural initialisation that is unfinished.
        UserError: If the path holds no usable weights, or the weights belong to another model or have changed since the run
            began.
    """
    if config.model.start is None:
        return None
    procedural = config.model.start == PROCEDURAL
    start = procedural_start(procedural_path(config)) if procedural else find_start(config.model.start)
    start.refuse_another_architecture(config.model, config.without_effect())
    if config.model.start_digest not in (None, start.digest):
        raise UserError(
            f"the weights in {start.path} (model.start) are not those that the run (or the federation) was started with: "
            "restore them, or start a new run. [start-weights-changed]"
        )
    return start


def procedural_start(path: Path) -> StartingWeights:
    """Returns the weights of a procedural initialisation.

    Args:
        path: Folder of the initialisation (`procedural_path`).

    Raises:
        MissingStart: If there is no such initialisation, or its training was interrupted and can be resumed.
        UserError: If the initialisation is damaged, or its training was interrupted and its key is gone; once it is deleted,
            `dpfed start` makes the same initialisation again.
    """
    if not path.exists():
        raise MissingStart(
            f"model.start = 'procedural', but there is no initialisation at {path}: `dpfed start` makes it. [start-missing]",
            command=_COMMAND,
        )
    try:
        run = RunDirectory.open(path)
        if run.finished:
            start = find_start(path)
            start.refuse_damage()
            return start
    except UserError as error:
        raise UserError(
            f"model.start = 'procedural', but {path} is damaged: delete it; `dpfed start` makes it again. [start-damaged]",
            command=_COMMAND,
        ) from error
    if not run.has_key:
        raise UserError(
            f"{path} is unfinished, and its key is gone: delete it; `dpfed start` makes it again. [start-stuck]",
            command=_COMMAND,
        )
    raise MissingStart(
        f"model.start = 'procedural', but {path} is unfinished: `dpfed start` finishes it. [start-unready]", command=_COMMAND
    )


def start_is_there(config: Config) -> bool:
    """Returns whether the procedural initialisation of a configuration's model exists and is complete.

    Args:
        config: Configuration of the initialised model, with the model's defaults resolved.

    Raises:
        UserError: If the initialisation is damaged, or is unfinished and its key is gone.
    """
    try:
        procedural_start(procedural_path(config))
    except MissingStart:
        return False
    return True


def checked_start(config: Config) -> StartingWeights | None:
    """Returns the starting weights that a configuration names; ``None``: it names no weights, or a procedural initialisation.

    `starting_weights` looks up a procedural initialisation later, because its folder's name depends on the architecture, and
    reading an architecture needs torch.

    Raises:
        UserError: See `starting_weights`; also for weights from a run without a guarantee on records that are not public.
    """
    if config.model.start in (None, PROCEDURAL):
        return None
    start = starting_weights(config)
    assert start is not None
    for run in start.trained or ():
        if run["public"] is False and not run["guarantee"]:
            raise UserError(
                f"the weights in {start.path} (model.start) were trained on records that are not marked public "
                f"('{run['data']}', run {run['run']}), and no privacy guarantee holds for these records, so nothing would "
                "protect them in a model that starts from these weights. Start from a private run, or from one on public "
                "records. [start-unprotected]"
            )
    return start


def recipe_for(config: Config) -> Config:
    """Returns the configuration of the run that trains the procedural initialisation of a model.

    Args:
        config: Configuration of the initialised model; the returned configuration has the same model (without weights), views,
            objective, size of images, device and stores.

    Raises:
        UserError: If the model's architecture brings its own weights.
    """
    if (config.model.architecture or "").startswith(_LOCAL_DIR):
        raise UserError(
            f"model.start = 'procedural', but model.architecture = {config.model.architecture!r} brings its own weights: leave "
            "model.start out, or give the architecture as a name or a JSON file. [start-weights-own]"
        )
    recipe = parse_config(read_toml(shipped_file(RECIPE), "config"), RECIPE)
    data = recipe.data.model_copy(update={"size": config.data.size, "stores": config.data.stores})
    model = config.model.model_copy(update={"weights": None, "start": None, "start_digest": None})
    training = recipe.training.model_copy(update={"device": config.training.device})
    taken = {"views": config.views, "text_views": config.text_views, "objective": config.objective}
    whole = AdaptationConfig(image="full", text="full")
    changes = {"data": data, "model": model, "training": training, "adaptation": whole, **taken}
    return recipe.model_copy(update=changes).effective()


def procedural_path(config: Config) -> Path:
    """Returns the folder of a procedural initialisation in ``data.stores``, named by a hash of all that the weights depend on.

    Args:
        config: Configuration of the initialised model, with the model's defaults resolved
            (`dpfed.runs.resolution.resolve_model_defaults`).
    """
    recipe = recipe_for(config)
    if recipe.data.size is None:
        raise ValueError("the configuration has no data.size: call dpfed.runs.resolution.resolve_model_defaults first")
    # Without places of files and the device. The digest of an open_clip architecture stands for its name.
    apart = {"data": {"stores"}, "training": {"device"}, "model": {"architecture"}}
    tree = recipe.model_dump(mode="json", exclude=apart, exclude_defaults=True)
    tree = {name: section for name, section in tree.items() if section}  # a device that was chosen leaves an empty section
    digest = hashlib.blake2b(json.dumps([VERSION, tree], sort_keys=True).encode(), digest_size=6).hexdigest()
    return Path(config.data.stores) / _FOLDER / f"{config.model.kind}-{digest}"


def origin_of(config: Config, start: StartingWeights | None) -> dict[str, Any] | None:
    """Describes a run's starting weights for its ``provenance.json``; ``None``: ``model.start`` names no weights.

    Args:
        config: Configuration with its defaults resolved.
        start: Starting weights that the configuration names; ``None``: it names none.

    Returns:
        The keys ``weights`` (in words), ``sha256`` (hexadecimal) and ``trained`` (the runs that made the weights; ``None``:
        unknown).
    """
    from dpfed.models.summary import start_of  # needs torch

    if start is None:
        return None
    return {"weights": start_of(config.model), "sha256": start.digest, "trained": start.trained}
