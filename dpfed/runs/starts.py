"""What a run starts from, without torch: its starting weights, and where the procedural ones of a model are kept.

A procedural initialisation is an ordinary run without privacy on procedural images, by the recipe that dpfed ships
(``configs/start.toml``), with the model, views and objective of the configuration that it is for. It reads no record, and so
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

RECIPE = "start"  # the shipped configuration
_FOLDER = "starts"  # in data.stores
_LOCAL_DIR = "local-dir:"


def starting_weights(config: Config) -> StartingWeights | None:
    """The weights that a configuration starts from; ``None``: random ones, or those of its open_clip or timm model.

    Args:
        config: whose model's defaults are resolved (`dpfed.runs.resolution.resolve_model_defaults`) if the start is procedural.

    Raises:
        MissingStart: if there are none where it says.
        UserError: if they are those of another model, or have changed since the run was started.
    """
    if config.model.start is None:
        return None
    procedural = config.model.start == PROCEDURAL
    found = procedural_start(procedural_path(config)) if procedural else find_start(config.model.start)
    found.refuse_another_architecture(config.model, config.without_effect())
    if config.model.start_digest not in (None, found.digest):
        raise UserError(
            f"model.start: the weights in {found.path} are not those that the run (or the federation) was started with: "
            "restore them, or start a new run. [start-weights-changed]"
        )
    return found


def procedural_start(path: Path) -> StartingWeights:
    """The weights of a procedural initialisation.

    Args:
        path: `procedural_path`.

    Raises:
        MissingStart: if there are none, or its training was interrupted.
        UserError: if they are damaged; whoever deletes them gets the same again.
    """
    if not path.exists():
        raise MissingStart(
            f"model.start: the procedural initialisation is not at {path}: `dpfed start` makes it. [start-missing]",
            command="Give `dpfed start` the same configuration and --set options.",
        )
    try:
        run = RunDirectory.open(path)
        if not run.finished:
            if not run.has_key:
                raise UserError(f"{path} is unfinished, and cannot be resumed. [start-stuck]")
            raise MissingStart(f"model.start = 'procedural': {path} is unfinished: `dpfed start` finishes it. [start-unready]")
        found = find_start(path)
        found.refuse_damage()
    except MissingStart:
        raise
    except UserError as error:
        raise UserError(
            f"model.start = 'procedural': {path} is damaged: delete it; `dpfed start` makes it again. [start-damaged]"
        ) from error
    return found


def start_is_there(config: Config) -> bool:
    """Whether the procedural initialisation of a configuration's model is there, whole.

    Args:
        config: that it is for, its model's defaults resolved.

    Raises:
        UserError: if it is damaged.
    """
    try:
        procedural_start(procedural_path(config))
    except MissingStart:
        return False
    return True


def checked_start(config: Config) -> StartingWeights | None:
    """The starting weights of a configuration; ``None``: it names none, or a procedural initialisation.

    That one is looked for later (`starting_weights`): its place follows from the architecture (torch).

    Raises:
        UserError: see `starting_weights`; also for a run without a guarantee on records that are not public.
    """
    if config.model.start in (None, PROCEDURAL):
        return None
    found = starting_weights(config)
    assert found is not None
    for run in found.trained or ():
        if run["public"] is False and not run["guarantee"]:
            raise UserError(
                f"model.start: {found.path} was trained on records that are not marked public ('{run['data']}', run "
                f"{run['run']}), and no privacy guarantee holds for them: nothing would protect them in a model that starts "
                "there. Start from a private run, or from one on public records. [start-unprotected]"
            )
    return found


def recipe_for(config: Config) -> Config:
    """How the procedural initialisation of a model is trained.

    Args:
        config: that it is for; its model (without weights), views, objective, size of images, device and stores are taken.

    Raises:
        UserError: for a model whose architecture brings its own weights.
    """
    if (config.model.architecture or "").startswith(_LOCAL_DIR):
        raise UserError(
            f"model.start = 'procedural': model.architecture = {config.model.architecture!r} brings its own weights: leave "
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
    """The run's directory of a procedural initialisation: in ``data.stores``, named by a hash of all that it depends on.

    Args:
        config: that it is for, its model's defaults resolved (`dpfed.runs.resolution.resolve_model_defaults`).
    """
    recipe = recipe_for(config)
    if recipe.data.size is None:
        raise ValueError("the size of the images is not resolved")
    # Not where files are, nor what computes: the digest of an open_clip architecture stands for its name.
    apart = {"data": {"stores"}, "training": {"device"}, "model": {"architecture"}}
    tree = recipe.model_dump(mode="json", exclude=apart, exclude_defaults=True)
    tree = {name: section for name, section in tree.items() if section}  # a device that was chosen leaves an empty section
    digest = hashlib.blake2b(json.dumps([VERSION, tree], sort_keys=True).encode(), digest_size=6).hexdigest()
    return Path(config.data.stores) / _FOLDER / f"{config.model.kind}-{digest}"


def origin_of(config: Config, start: StartingWeights | None) -> dict[str, Any] | None:
    """What a run writes of its starting weights when it begins; ``None``: it has none of its own choice.

    Args:
        config: its defaults resolved.

    Returns:
        ``weights`` (in words), ``sha256``, and ``trained``: the runs that made them (``None``: nothing says).
    """
    from dpfed.models.summary import start_of  # it needs torch

    if start is None:
        return None
    return {"weights": start_of(config.model), "sha256": start.digest, "trained": start.trained}
