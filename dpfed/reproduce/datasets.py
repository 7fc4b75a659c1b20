"""The data sets of the experiments: the settings of the paper for each, and how they shrink to what a CPU can do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from dpfed.errors import UserError, nearest

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
        raise UserError(f"this experiment has no data set '{name}'; {nearest(name, offered)}")
    return DATA_SETS[name]
