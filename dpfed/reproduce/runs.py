"""The runs of an experiment: their configurations, their folders, and the training of runs that are not finished."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import Config, PublicConfig, read_back
from dpfed.data.importers import detect
from dpfed.errors import UserError
from dpfed.files.shipped import configs
from dpfed.files.toml_file import put, read_toml
from dpfed.paths import is_store
from dpfed.privacy.method import method_named
from dpfed.progress import Progress, import_progress
from dpfed.reproduce.comparison import WITHOUT_PRIVACY, DataSet, Experiment, Scale, Variant
from dpfed.runs.preflight import Preflight
from dpfed.runs.pretraining import pretrain
from dpfed.runs.records import records_of
from dpfed.runs.resolution import resolve_defaults


@dataclass(frozen=True)
class Request:
    """A user's request to reproduce an experiment.

    Attributes:
        experiment: Experiment to reproduce.
        data: Data set to train on.
        scale: ``"gpu"``: the paper's hyperparameters; ``"cpu"``: smaller hyperparameters, with which a CPU can train.
        epsilons: Values of epsilon to train for.
        methods: Values of ``bounding.method``; ``None``: all that the experiment compares.
        path: Path of the records.
        public: Whether the user declares that anyone may see the records.
        out: Folder for runs and results.
    """

    experiment: Experiment
    data: DataSet
    scale: Scale
    epsilons: tuple[float, ...]
    methods: tuple[str, ...] | None
    path: Path
    public: bool
    out: Path

    @property
    def name(self) -> str:
        """The name of the results: experiment, data, scale, and the epsilons and methods if they are not the experiment's."""
        epsilons = () if self.epsilons == self.experiment.epsilons else self.epsilons
        promises = "".join(f"-epsilon{epsilon:g}" for epsilon in epsilons)
        methods = set() if self.methods is None else set(self.methods)
        whole = methods == {variant.method for variant in self.experiment.all_variants}
        compared = "" if whole else "".join(f"-{method}" for method in sorted(methods))
        return f"{self.experiment.name}-{self.data.name}-{self.scale}{promises}{compared}"


@dataclass(frozen=True)
class Planned:
    """A run that an experiment needs.

    Attributes:
        variant: Variant of the experiment that the run trains.
        epsilon: Epsilon of the run's guarantee, infinity without privacy.
        config: Configuration, named after the data set, the method and a hash of the whole configuration.
        folder: Folder of the run; runs with the same configuration have the same folder, even if they belong to different
            experiments.
    """

    variant: Variant
    epsilon: float
    config: Config
    folder: Path


def plan_runs(request: Request) -> list[Planned]:
    """Plans all runs of an experiment. Nothing is trained.

    Args:
        request: Request of the user.

    Raises:
        UserError: If there are no records at the path or no importer recognises them, the request does not suit the experiment,
            `Request.out` is a file, or a configuration is refused.
    """
    experiment = request.experiment
    if experiment.pretrained and request.scale == "cpu":
        raise UserError(f"{experiment.name} is about pretrained towers: use --scale gpu. [experiment-scale]")
    has_epsilons = experiment.axis == "epsilon"
    if has_epsilons and request.epsilons != experiment.epsilons:
        raise UserError(f"{experiment.name} has values of epsilon of its own: leave --epsilon out. [experiment-epsilons]")
    if request.out.exists() and not request.out.is_dir():
        raise UserError(f"{request.out} is a file, but runs and results need a folder: choose another --out. [experiment-out]")
    base = _base(request)
    planned: dict[tuple[str, str, Path], Planned] = {}  # a variant without privacy, or with its own epsilon, is one run
    for epsilon in request.epsilons:
        for variant in experiment.chosen(request.scale, request.methods):
            config = _config(base, request, variant, epsilon)
            spent, folder = config.privacy.epsilon, request.out / "runs" / config.name
            item = Planned(variant, math.inf if spent is None else spent, config, folder)
            planned.setdefault((variant.label, variant.setting, folder), item)
    return list(planned.values())


def train(planned: list[Planned], progress: Progress) -> None:
    """Trains every run once: finished runs are kept, and interrupted runs resumed.

    Args:
        planned: Runs of the experiment.
        progress: Display of the stages.

    Raises:
        UserError: If `Preflight.of` refuses a run that has not begun, before any run is trained; or if
            `dpfed.runs.pretraining.pretrain` refuses a run. Runs that finished earlier are kept.
    """
    runs = {item.folder: item.config for item in planned}
    for folder, config in runs.items():
        if RunDirectory.unused(folder):
            progress.note(f"{config.name}: accounting")
            Preflight.of(config, folder)
    advance = progress.stage("runs", len(runs))
    for done, (folder, config) in enumerate(runs.items(), start=1):
        progress.note(f"{config.name}: {'already finished' if RunDirectory(folder).finished else 'training'}")
        pretrain(config, folder, progress, resume=True)
        advance(done)


def require_right_data(request: Request, planned: list[Planned], progress: Progress) -> None:
    """Refuses records that cannot be those of the data set, such as the images of another folder.

    Args:
        request: Request of the user.
        planned: Runs of the experiment; the first names the records.
        progress: Display of the import.

    Raises:
        UserError: If no label of the records has as many classes as the data set, or the records cannot be read or imported.
    """
    if request.data.classes is None:
        return
    store = records_of(planned[0].config, import_progress(progress), say=progress.note)
    counts = {name: len(classes) for name, classes in store.label_names.items()}
    if request.data.classes not in counts.values():
        words = ", ".join(f"{count} classes of '{name}'" for name, count in counts.items()) or "no labels"
        raise UserError(
            f"{request.data.name} has {request.data.classes} classes, but {request.path} has {words}: give the path of "
            "the right records with --path. [experiment-classes]"
        )


def differences(request: Request, planned: list[Planned]) -> str:
    """Describes the request's scale for the output: how model, batch and steps differ from the paper's.

    Args:
        request: Request of the user.
        planned: Runs of the experiment.
    """
    if request.data.generated:
        return f"{request.data.name}: generated records and a small model, {_size(planned[0].config)}."
    if request.scale == "gpu":
        return f"Scale gpu: the paper's hyperparameters ({_size(planned[0].config)})."
    whole = plan_runs(dataclasses.replace(request, scale="gpu"))[0].config
    sizes = {} if request.experiment.axis else {item.variant.label: _size(item.config) for item in planned}
    other = "".join(f" ({label}: {size})" for label, size in sizes.items() if size != _size(planned[0].config))
    return (
        f"Scale cpu: {_size(planned[0].config)}{other}, where the paper has {_size(whole)}. "
        "The figures are not comparable with the paper's; only the order of the methods may be."
    )


def _size(config: Config) -> str:
    model = config.model.architecture or config.model.timm or f"{config.model.image} of width {config.model.width}"
    return f"{model}, B = {config.privacy.batch:,}, T = {config.privacy.steps:,}"


def _base(request: Request) -> dict[str, Any]:
    """Returns the keys of the data set's configuration at the request's scale, before the changes of a variant."""
    tree = read_toml(configs() / request.data.config, "config")
    if not request.data.generated:
        if not request.path.exists():
            raise UserError(
                f"there is nothing at {request.path}: give the path of the {request.data.name} records with --path. "
                "[experiment-path]"
            )
        source = "store" if is_store(request.path) else detect(request.path)
        for key, value in {"source": source, "path": str(request.path), "public": request.public}.items():
            put(tree, f"data.{key}", value)
    if request.scale == "cpu" or request.data.generated:
        for key, value in (request.data.cpu | request.experiment.small).items():
            put(tree, key, value)
    return tree


def _config(base: dict[str, Any], request: Request, variant: Variant, epsilon: float) -> Config:
    tree = copy.deepcopy(base)
    put(tree, "privacy.epsilon", epsilon)
    method, small = variant.method, request.scale == "cpu" or request.data.generated
    for key, value in ((WITHOUT_PRIVACY if method == "none" and small else {}) | variant.changes).items():
        put(tree, key, value)
    if method_named(method).public_records:
        _with_public_records(tree, request)
    if method == "none":
        put(tree, "privacy.epsilon", None)
    often = request.experiment.on_the_way
    put(tree, "evaluation.every", max(1, tree["privacy"]["steps"] // often) if often else 0)
    tree["name"] = "unnamed"
    # All methods and all sources of records share one base, so some of its keys may have no effect for a variant.
    config = resolve_defaults(read_back(tree, f"{request.experiment.name}, {variant.label}"))
    digest = hashlib.blake2b(config.dump().encode(), digest_size=5).hexdigest()
    return config.model_copy(update={"name": f"{request.data.name}-{method}-{digest}"})


def _with_public_records(tree: dict[str, Any], request: Request) -> None:
    """Sets the public records, and reduces the batch, so that a step passes as many images through the model as before.

    With public contrast, each record's group also contains `PublicConfig.records` public records.
    """
    generated = {"source": "shapes", "half": "first"} if request.data.generated else {"source": "procedural"}
    put(tree, "public", generated)
    put(tree, "privacy.batch", max(1, tree["privacy"]["batch"] // (1 + PublicConfig().records)))
