"""Where a configuration is completed: `resolve` makes every choice that the user left open, once.

`settle` makes those that are the same on every machine: paths, image size, the way to make images square, a loss's bias, what
of an image tower is trained, how records are drawn, the digests of an architecture, of starting weights and of public records.
`resolve` also makes
the machine's: device and engine.
"""

from __future__ import annotations

import torch
from torch import nn

from dpfed.bounding.engines import choose_engine
from dpfed.building.method import contrasted, group_loss
from dpfed.building.model import model_of
from dpfed.building.plan import sketch_of
from dpfed.config import Config, ModelConfig
from dpfed.config.configuration import ResolvedConfig
from dpfed.errors import UserError
from dpfed.features.towers import from_features, frozen_towers
from dpfed.models.blueprints import blueprint
from dpfed.models.building import tokenizer_for
from dpfed.models.images import default_size, preprocessing_of
from dpfed.models.starting import MissingStart
from dpfed.models.text_blueprints import text_blueprint
from dpfed.models.timm_blueprints import timm_blueprint
from dpfed.models.validation import validate
from dpfed.privacy.method import method_named
from dpfed.progress import Silent, Watcher, signs_of_life
from dpfed.runs.dummy_batch import dummy_batch
from dpfed.runs.memory import records_of_a_pass, require_memory
from dpfed.runs.preflight import refuse_inexact
from dpfed.runs.records import public_digest, with_absolute_paths
from dpfed.runs.starts import starting_weights


def resolve(config: Config, watcher: Watcher | None = None) -> ResolvedConfig:
    """The configuration with every choice made, on the machine that will compute.

    Args:
        config: as the user wrote it, or resolved before, here or elsewhere; a choice that is made is kept.
        watcher: learns what takes seconds.

    Raises:
        UserError: for an unknown architecture or one that has changed, a device that is not there, an engine that does not go
            with the method, or too little memory.
    """
    if isinstance(config, ResolvedConfig):
        return config
    config = settle(config)
    device = pick_device(config.training.device)
    _refuse_engine(config)
    picks, watcher = method_named(config.bounding.method).picks_engine, watcher or Silent()
    if picks and device.type == "cuda" and config.training.precision == "fp32":
        watcher.note("float32 on this GPU: training.precision = 'bf16' is several times as fast, and as sound")
    if picks and config.bounding.pass_records is None:
        config = _with(config, bounding={"pass_records": records_of_a_pass(config, device)})
    engine: str = config.bounding.engine
    if engine == "auto" and picks:
        engine = "loop" if config.privacy.noise == "discrete" else _engine(config, device, watcher)
    config = _with(config, training={"device": device.type}, bounding={"engine": engine})
    refuse_inexact(config)
    return ResolvedConfig.unchecked(**{name: getattr(config, name) for name in Config.model_fields})


def settle(config: Config) -> Config:
    """The configuration with the choices made that do not depend on the machine, such as those of a federation's terms.

    Raises:
        UserError: for an unknown architecture, or what has changed since the run was started: an architecture, starting
            weights or public records.
    """
    config, objective = settle_model(with_absolute_paths(config)), config.objective
    model = config.model
    chosen: dict[str, object] = {}
    frozen = method_named(config.bounding.method).closed_form
    if objective.loss.bias is not None and objective.bias is None:
        chosen["bias"] = objective.loss.bias(contrasted(config))
    return _with(
        config,
        data={"resize": preprocessing_of(config.model, config.data.resize).resize},
        objective=chosen,
        model={"start_digest": _start_digest(config)},
        adaptation={"image": "frozen" if frozen else config.adaptation.of_images(model.kind)} if model.external else {},
        public={"digest": public_digest(config)},
    )


def settle_model(config: Config) -> Config:
    """The configuration with the size of its images and the digest of its open_clip or timm architecture.

    Raises:
        UserError: see `settle`.
    """
    size = config.data.size or default_size(config.model)
    return _with(config, data={"size": size}, model={"digest": _digest(config.model)})


def _start_digest(config: Config) -> str | None:
    """Of the starting weights: a run must not continue with others. Once it has a checkpoint it can do without the file."""
    try:
        found = starting_weights(config)
    except MissingStart:
        return config.model.start_digest
    return None if found is None else found.digest


def _with(config: Config, **sections: dict[str, object]) -> Config:
    changed = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    return config.model_copy(update=changed)


def _digest(model: ModelConfig) -> str | None:
    """Of an open_clip or timm architecture, and of a pretrained text tower: a run must not continue with others."""
    found: list[str] = []
    if model.kind == "open_clip":
        found, what, where = [blueprint(model).digest], f"the architecture {model.architecture}", "the file (or open_clip)"
    if model.timm is not None:
        found, what = [timm_blueprint(model).digest], f"the architecture {model.image}"
        where = "the version of timm and model.weights"
    if model.pretrained_text is not None:
        found, what, where = [*found, text_blueprint(model.text).digest], "the model", "its towers"
    if not found:
        return model.digest
    digest = "-".join(found)
    if model.digest not in (None, digest):
        raise UserError(f"{what} is no longer the one that the run was started with: restore {where}. [run-model-changed]")
    return digest


def _engine(config: Config, device: torch.device, watcher: Watcher) -> str:
    """The engine for a model of this kind, with any weights, on this machine."""
    require_memory(config, device)
    model = _proxy(config)
    plan, tokenizer = sketch_of(config), tokenizer_for(config.model)
    towers = frozen_towers(model) if config.cached_views else None
    model = model if towers is None else from_features(model)
    batch = dummy_batch(config, plan, tokenizer, device, towers)
    groups, loss = plan.steps * plan.groups, group_loss(config)
    with signs_of_life(watcher.note, "trying the layerwise engine on noise"):
        records = config.bounding.pass_records
        return choose_engine(model.to(device), batch, config.training.precision, loss, groups, watcher.note, records)


def _proxy(config: Config) -> nn.Module:
    """A model of the run's kind, with any weights."""
    with torch.random.fork_rng(devices=[]):
        model = model_of(config, load_weights=False)
    validate(model)
    return model


def _refuse_engine(config: Config) -> None:
    """Methods with an engine of their own have no choice of one."""
    method, engine = method_named(config.bounding.method), config.bounding.engine
    if engine != "auto" and not method.picks_engine:
        raise UserError(f"bounding.method = '{method.name}' has its own engine: leave bounding.engine out. [run-engine-own]")


def pick_device(name: str) -> torch.device:
    """The device that a configuration asks for; ``auto`` takes cuda, then mps, then cpu.

    Raises:
        UserError: if it is not there.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device, there in available.items() if there)
    if not available[name]:
        there = [device for device, is_there in available.items() if is_there]
        raise UserError(f"training.device = '{name}', but this machine has only: {', '.join(there)}. [run-device-missing]")
    return torch.device(name)
