"""What an experiment is: runs that differ in a few keys.

Also here: the data sets of the experiments: the settings of the paper for each, and how they shrink to what a CPU can do.
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
    """One run of an experiment, for each epsilon.

    Attributes:
        label: of the run or of its curve; the method's name in the paper.
        changes: to the configuration, by key such as ``bounding.group_size``.
        setting: the column of the published figures that tells runs of one method apart.
        x: the value of `Experiment.axis`.
        untrained: the figures of the model before that run: the paper's "Base".
    """

    label: str
    changes: dict[str, Any]
    setting: str = ""
    x: float | None = None
    untrained: bool = False

    @property
    def method(self) -> str:
        """``bounding.method``."""
        return self.changes.get("bounding.method", "group")


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper, or one of our own.

    Attributes:
        name: on the command line.
        title: for people.
        data: the data sets that it is run on.
        variants: the runs that it compares.
        epsilons: the promises at which every variant is trained.
        table: of the DP-GCL paper, whose figures stand beside ours; ``None`` for a figure, of which no numbers are printed.
        axis: the name of `Variant.x`.
        largest_on_cpu: variants beyond this `x` are left out at ``--scale cpu``.
        on_the_way: evaluations during training; the reports of the runs draw them.
        sweep: the file in ``configs/sweeps/`` that has the variants.
        pretrained: it is about the pretrained towers, which ``--scale cpu`` does not have.
        small: what ``--scale cpu`` changes beyond what the data set does; for generated data, which are small, at either scale.
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
        """Its own variants, or those of its sweep file."""
        if self.sweep is None:
            return self.variants
        runs = read_toml(configs() / "sweeps" / f"{self.sweep}.toml", "sweep")["run"]
        return tuple(Variant("DP-GCL", run["set"], setting=run["name"]) for run in runs)

    def chosen(self, scale: str, methods: Iterable[str] | None) -> tuple[Variant, ...]:
        """The variants that are run.

        Args:
            scale: ``cpu`` or ``gpu``.
            methods: values of ``bounding.method``; ``None``: all.

        Raises:
            UserError: for a method that the experiment does not compare.
        """
        variants = self.all_variants
        offered = {variant.method for variant in variants}
        wanted = offered if methods is None else set(methods)
        for method in sorted(wanted - offered):
            raise UserError(f"{self.name} does not compare a method '{method}'; {nearest(method, offered)} [experiment-method]")
        limit = self.largest_on_cpu if scale == "cpu" else None
        return tuple(v for v in variants if v.method in wanted and (limit is None or v.x is None or v.x <= limit))

    def count(self, scale: str) -> int:
        """How many runs it trains: one for each variant and epsilon, and a single one where there is no privacy."""
        trained = [variant for variant in self.chosen(scale, None) if not variant.untrained]
        without = sum(variant.method == "none" for variant in trained)
        return without + (len(trained) - without) * len(self.epsilons)


Scale = Literal["cpu", "gpu"]
CLASSIFICATION = ("linear_probe_accuracy", "knn3_accuracy")
RETRIEVAL = ("image_to_text_R@10", "text_to_image_R@10")

# What `--scale cpu` changes. A key that stands for a section replaces all of it.
_SMALL: dict[str, Any] = {
    "privacy.batch": 512,
    "privacy.steps": 100,
    "bounding.group_size": 4,  # as many groups as the paper's 16 of 2,048
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
# From scratch, at a temperature and a clip norm that suit it: those of the paper are for a pretrained tower.
_SMALL_TOWERS = {
    **_SMALL,
    "data.size": 32,
    "model": {"kind": "image-text", "image": "cnn", "embedding": 16},
    "adaptation": None,
    "objective.temperature": 0.2,
    "bounding.clip_norm": 1.0,
}


# Adam's steps have one length whatever the gradient, so without noise a rate that suits the small scale's noise diverges.
WITHOUT_PRIVACY = {"optimizer.learning_rate": 1e-3}


@dataclass(frozen=True)
class DataSet:
    """A data set of the experiments.

    Attributes:
        name: on the command line and in the published figures.
        config: its file in ``configs/``, with the paper's hyperparameters.
        metrics: what is measured on it.
        cpu: what `--scale cpu` changes in the configuration, by key.
        generated: whether it needs no path, and is public.
        classes: that its records are labelled with; ``None``: not labelled.
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
# Small as it is, so both scales are the same; the quickstart's groups, which not every method has.
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
    """A data set by name.

    Args:
        name: as the user wrote it.
        offered: by the experiment.

    Raises:
        UserError: for another one.
    """
    if name not in offered:
        raise UserError(f"this experiment has no data set '{name}'; {nearest(name, offered)} [experiment-data-set]")
    return DATA_SETS[name]
