"""The definition of an experiment: runs whose configurations differ in a few keys.

This module also defines the data sets of the experiments: the paper's settings for each data set, and smaller settings for a
CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from dpfed.errors import UserError, nearest
from dpfed.files.shipped import configs
from dpfed.files.toml_file import read_toml


@dataclass(frozen=True)
class Variant:
    """A variant of an experiment. It is run once for each epsilon, or only once if it has no privacy or sets epsilon itself.

    Attributes:
        label: Label of the run or of its curve: the method's name in the paper.
        changes: Changes to the configuration, by key such as ``bounding.group_size``.
        setting: Value of the column ``setting`` of the published figures, which distinguishes runs of one method.
        x: Value on `Experiment.axis`; ``None``: the experiment has no axis.
        untrained: Whether the figures are those of the model before training, which the paper calls "Base".
    """

    label: str
    changes: dict[str, Any]
    setting: str = ""
    x: float | None = None
    untrained: bool = False

    @property
    def method(self) -> str:
        """The value of ``bounding.method``."""
        return self.changes.get("bounding.method", "group")


@dataclass(frozen=True)
class Experiment:
    """An experiment: it repeats a table or figure of a paper, or is an experiment of dpfed's own.

    Attributes:
        name: Name on the command line.
        title: Title, for people.
        data: Names of the data sets of the experiment.
        variants: Variants that the experiment compares.
        epsilons: Values of epsilon at which every variant with privacy is trained, unless it sets epsilon itself.
        table: Number of the table in the DP-GCL paper whose figures are compared with ours; ``None``: there are no published
            numbers, because the paper draws a figure or the experiment is dpfed's own.
        axis: Name of the quantity `Variant.x`; empty: the experiment has no axis.
        largest_on_cpu: Largest `Variant.x` at ``--scale cpu``; variants beyond it are left out. ``None``: no limit.
        on_the_way: Number of evaluations during training, which the reports of the runs draw; 0: only after training.
        sweep: Name of the file in ``configs/sweeps/`` that defines the variants; ``None``: the attribute `variants` lists them.
        pretrained: Whether the experiment is about pretrained towers, which ``--scale cpu`` does not have.
        small: Changes to the configuration at ``--scale cpu``, in addition to `DataSet.cpu`. For generated data, which are
            small, they apply at either scale.
    """

    name: str
    title: str
    data: tuple[str, ...]
    variants: tuple[Variant, ...] = ()
    epsilons: tuple[float, ...] = (10.0,)
    table: str | None = None
    axis: str = ""
    largest_on_cpu: float | None = None
    on_the_way: int = 0
    sweep: str | None = None
    pretrained: bool = False
    small: dict[str, Any] = field(default_factory=dict)

    @property
    def all_variants(self) -> tuple[Variant, ...]:
        """The variants in the sweep file if `sweep` names a file, otherwise `variants`."""
        if self.sweep is None:
            return self.variants
        runs = read_toml(configs() / "sweeps" / f"{self.sweep}.toml", "sweep")["run"]
        return tuple(Variant("DP-GCL", run["set"], setting=run["name"]) for run in runs)

    def chosen(self, scale: str, methods: Iterable[str] | None) -> tuple[Variant, ...]:
        """Selects the variants of the given methods; at scale ``"cpu"``, without those beyond `largest_on_cpu`.

        Args:
            scale: Scale: ``"cpu"`` or ``"gpu"``.
            methods: Values of ``bounding.method``; ``None``: all.

        Raises:
            UserError: If the experiment does not compare one of the methods.
        """
        variants = self.all_variants
        offered = {variant.method for variant in variants}
        wanted = offered if methods is None else set(methods)
        for method in sorted(wanted - offered):
            raise UserError(f"{self.name} does not compare a method '{method}'; {nearest(method, offered)} [experiment-method]")
        limit = self.largest_on_cpu if scale == "cpu" else None
        return tuple(v for v in variants if v.method in wanted and (limit is None or v.x is None or v.x <= limit))

    def count(self, scale: str) -> int:
        """Counts the runs that the experiment trains: one for each variant and epsilon, and one for a variant without privacy.

        An untrained variant needs no run of its own.

        Args:
            scale: Scale: ``"cpu"`` or ``"gpu"``.
        """
        trained = [variant for variant in self.chosen(scale, None) if not variant.untrained]
        without = sum(variant.method == "none" for variant in trained)
        return without + (len(trained) - without) * len(self.epsilons)


Scale = Literal["cpu", "gpu"]
CLASSIFICATION = ("linear_probe_accuracy", "knn3_accuracy")
RETRIEVAL = ("image_to_text_R@10", "text_to_image_R@10")

# Changes at `--scale cpu`. A key that names a section replaces the whole section.
_SMALL: dict[str, Any] = {
    "privacy.batch": 512,
    "privacy.steps": 100,
    "bounding.group_size": 4,  # 128 groups, as many as the paper's groups of 16 in a batch of 2,048
    "bounding.microbatch": 512,
    "optimizer": {"name": "adam", "learning_rate": 4e-3},
    "training": {"checkpoint_every": 50},
    "evaluation.records": 2000,
}
_SMALL_IMAGE = {
    **_SMALL,
    "data.size": 32,
    "model": {"kind": "image", "image": "cnn", "width": 32, "embedding": 8},
    "evaluation.bank": 10_000,
}
# Training from scratch, with a suitable temperature and clip norm: the paper's values are for a pretrained tower.
_SMALL_TOWERS = {
    **_SMALL,
    "data.size": 32,
    "model": {"kind": "image-text", "image": "cnn", "embedding": 16},
    "adaptation": None,
    "objective.temperature": 0.2,
    "bounding.clip_norm": 1.0,
}


# Adam's steps are as long for small gradients as for large ones. So without noise, a rate for the small scale's noise diverges.
WITHOUT_PRIVACY = {"optimizer.learning_rate": 1e-3}


@dataclass(frozen=True)
class DataSet:
    """A data set of the experiments.

    Attributes:
        name: Name on the command line and in the published figures.
        config: Name of the data set's file in ``configs/``, with the paper's hyperparameters.
        metrics: Names of the metrics that are measured on the data set.
        cpu: Changes to the configuration at ``--scale cpu``, by key.
        generated: Whether dpfed generates the records: the data set then needs no path, and is public.
        classes: Number of classes that a label of the records must have; ``None``: this is not checked.
    """

    name: str
    config: str
    metrics: tuple[str, ...]
    cpu: dict[str, Any] = field(default_factory=dict)
    generated: bool = False
    classes: int | None = None


_CLASSES = {"fashion-mnist": 10, "cifar10": 10, "eurosat": 10, "camelyon": 2}
IMAGES = tuple(_CLASSES)
CAPTIONED = ("cuhk-pedes", "rstpreid", "deepfashion-mm", "roco")
# The data set is small, so both scales are the same. Groups have the quickstart's size; not every method has groups.
SHAPES = DataSet("shapes", "methods.toml", RETRIEVAL, {"bounding.group_size": 4}, generated=True)

DATA_SETS = {
    data.name: data
    for data in (
        *(DataSet(name, f"{name}.toml", CLASSIFICATION, _SMALL_IMAGE, classes=_CLASSES[name]) for name in IMAGES),
        *(DataSet(name, f"{name}.toml", RETRIEVAL, _SMALL_TOWERS) for name in CAPTIONED),
        SHAPES,
    )
}


def data_set(name: str, offered: tuple[str, ...]) -> DataSet:
    """Returns a data set by its name.

    Args:
        name: Name that the user wrote.
        offered: Names of the experiment's data sets.

    Raises:
        UserError: If the experiment has no data set of this name.
    """
    if name not in offered:
        raise UserError(f"this experiment has no data set '{name}'; {nearest(name, offered)} [experiment-data-set]")
    return DATA_SETS[name]
