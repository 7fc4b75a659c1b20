"""Makes the choices that a configuration leaves open, except those that depend on a machine's devices.

These choices are: absolute paths, the size of images, how images are made square, a loss's bias, the trained part of an image
tower, basis and layers of private moments, and the digests of an architecture, of starting weights and of public records.
`dpfed.runs.build` makes the others: device and engine.
"""

from __future__ import annotations

import torch

from dpfed.building.method import contrasted
from dpfed.config import Config, ModelConfig
from dpfed.errors import UserError
from dpfed.models.blueprints import blueprint
from dpfed.models.images import default_size, preprocessing_of
from dpfed.models.starting import MissingStart, StartingWeights
from dpfed.models.text_blueprints import text_blueprint
from dpfed.models.timm_blueprints import timm_blueprint
from dpfed.privacy.method import method_named
from dpfed.runs.records import public_digest, with_absolute_paths
from dpfed.runs.starts import starting_weights


def resolve_defaults(config: Config) -> Config:
    """Makes the choices of a configuration that do not depend on the machine, for example for the terms of a federation.

    Raises:
        UserError: For an unknown architecture, or starting weights or a public store that cannot be used; if an architecture,
            starting weights or public records have changed since the run began; also see `with_absolute_paths`.
    """
    return resolve_with_start(config)[0]


def resolve_with_start(config: Config, start: StartingWeights | None = None) -> tuple[Config, StartingWeights | None]:
    """Makes the choices of `resolve_defaults`, and finds the starting weights that the configuration names.

    Args:
        config: Configuration of the run.
        start: Starting weights, if they were found before.

    Returns:
        The configuration, and the starting weights. ``None``: the configuration names no weights, or they are missing. If they
        are missing, `dpfed.runs.build.build` refuses a run whose model must start from them.

    Raises:
        UserError: See `resolve_defaults`.
    """
    config, objective = resolve_model_defaults(with_absolute_paths(config)), config.objective
    model = config.model
    chosen: dict[str, object] = {}
    frozen = method_named(config.bounding.method).closed_form
    if objective.loss.bias is not None and objective.bias is None:
        chosen["bias"] = objective.loss.bias(contrasted(config))
    start = start or _start(config)
    config = changed(
        config,
        data={"resize": preprocessing_of(config.model, config.data.resize).resize},
        objective=chosen,
        model={"start_digest": model.start_digest if start is None else start.digest},
        adaptation={"image": "frozen" if frozen else config.adaptation.of_images(model.kind)} if model.external else {},
        bounding=_with_basis(config),
        public={"digest": public_digest(config)},
    )
    return config, start


def _with_basis(config: Config) -> dict[str, object]:
    """Returns the options of private moments with their basis and layers; empty for other methods and for aligned towers."""
    if not method_named(config.bounding.method).closed_form or config.is_aligned:
        return {}
    given = {"basis": "generated", **config.bounding.options}
    several = given["basis"] != "random" and config.model.reads_text
    return {"options": {"layers": "several" if several else "last", **given}}


def resolve_model_defaults(config: Config) -> Config:
    """Returns a copy of a configuration with the size of the images and the digest of the model's architecture filled in.

    Raises:
        UserError: If the architecture is unknown, or has changed since the run began.
    """
    size = config.data.size or default_size(config.model)
    return changed(config, data={"size": size}, model={"digest": _digest(config.model)})


def _start(config: Config) -> StartingWeights | None:
    """Returns the starting weights; ``None``: the configuration names none, or they are missing (a finished run needs none)."""
    try:
        return starting_weights(config)
    except MissingStart:
        return None


def changed(config: Config, **sections: dict[str, object]) -> Config:
    """Returns the configuration with changed values of the given keys, by section."""
    updated = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    return config.model_copy(update=updated)


def _digest(model: ModelConfig) -> str | None:
    """Returns the digest of a model's external architectures and pretrained text tower, which must stay the same in a run."""
    digests: list[str] = []
    if model.kind == "open_clip":
        digests, what, where = [blueprint(model).digest], f"the architecture {model.architecture}", "the file (or open_clip)"
    if model.timm is not None:
        digests, what = [timm_blueprint(model).digest], f"the architecture {model.image}"
        where = "the version of timm and model.weights"
    if model.pretrained_text is not None:
        digests, what, where = [*digests, text_blueprint(model.text).digest], "the model", "its towers"
    if not digests:
        return model.digest
    digest = "-".join(digests)
    if model.digest not in (None, digest):
        raise UserError(f"{what} is no longer the one that the run was started with: restore {where}. [run-model-changed]")
    return digest


def refuse_engine(config: Config) -> None:
    """Refuses a configuration that chooses an engine although its method has an engine of its own.

    Raises:
        UserError: If the configuration does this; the message names the method.
    """
    method, engine = method_named(config.bounding.method), config.bounding.engine
    if engine != "auto" and not method.picks_engine:
        raise UserError(f"bounding.method = '{method.name}' has its own engine: leave bounding.engine out. [run-engine-own]")


def pick_device(name: str) -> torch.device:
    """Returns the device that a configuration asks for; ``auto`` means the first of cuda, mps and cpu that there is.

    Raises:
        UserError: If this machine does not have the device.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device, there in available.items() if there)
    if not available[name]:
        there = [device for device, is_there in available.items() if is_there]
        raise UserError(
            f"training.device = '{name}', but this machine has only {' and '.join(there)}: use a machine with such a device, "
            "or, for a new run, set training.device = 'auto'. [run-device-missing]"
        )
    return torch.device(name)
