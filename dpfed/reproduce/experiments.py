"""The experiments of `dpfed reproduce`, with the runs that each compares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dpfed.errors import UserError, nearest
from dpfed.reproduce.comparison import CAPTIONED, IMAGES, SHAPES, Experiment, Variant


def _method(label: str, method: str, **rest: Any) -> Variant:
    return Variant(label, {"bounding.method": method}, **rest)


BASE = _method("Base", "group", untrained=True)
GROUP = _method("DP-GCL", "group")
BASELINES = (_method("DP-SGD", "sample"), _method("Logit-DP", "logit"), _method("DP-CLIP", "batch"))
PUBLIC = _method("public contrast", "public")
COMPARED = (*BASELINES, GROUP)
EVERYWHERE = (*IMAGES, *CAPTIONED, SHAPES.name)
_BATCHES = tuple(16 * 2**power for power in range(8))
_GROUP_SIZES = tuple(2**power for power in range(1, 9))


def _along(key: str, values: Iterable[float], variants: Iterable[Variant]) -> tuple[Variant, ...]:
    """Returns every variant with every value of a configuration key, and that value as the variant's `x`."""
    return tuple(Variant(v.label, {**v.changes, key: value}, x=value) for v in variants for value in values)


def _group_sizes(augmentations: int) -> tuple[Variant, ...]:
    """Returns the private variants of Figure 4, one for each group size.

    Args:
        augmentations: Number of further views of each negative, ``objective.augmentations``.
    """
    with_views = {"objective.augmentations": augmentations}
    words = "with" if augmentations else "without"
    private = Variant(f"private, {words} augmentation", {"bounding.method": "group", **with_views})
    return _along("bounding.group_size", _GROUP_SIZES, [private])


def _with_before(label: str, changes: dict[str, Any]) -> tuple[Variant, Variant]:
    """Returns two variants: the model before a run, and after it.

    The experiments compare the gain of training, because architectures and initialisations differ.
    """
    return Variant(label, changes, setting="before", untrained=True), Variant(label, changes)


_PYRAMID = {"model.features": "pyramid"}
_RECIPE = _PYRAMID | {
    "model.embedding": 64,
    "objective.temperature": 0.2,
    "objective.augmentations": 0,
    "bounding.group_size": 4,
    "privacy.accountant": "pld",
    "privacy.batch": 2048,
    "privacy.steps": 300,
    "optimizer": {"name": "adam", "learning_rate": 3e-3, "schedule": "cosine", "ema": 0.95},
}

_EXPERIMENTS = (
    Experiment(
        "table1",
        "Linear probe and 3-NN accuracy of every method (DP-GCL, Table 1)",
        IMAGES,
        (BASE, *COMPARED),
        epsilons=(1.0, 10.0),
        table="1",
    ),
    Experiment(
        "table3",
        "Retrieval accuracy of every method (DP-GCL, Table 3)",
        (*CAPTIONED, SHAPES.name),
        (BASE, *COMPARED),
        epsilons=(1.0, 10.0),
        table="3",
    ),
    Experiment(
        "table4",
        "The gain from groups (BGC), and from further views of negatives (ISA) (DP-GCL, Table 4)",
        EVERYWHERE,
        (
            _method("DP-CLIP", "batch", setting="neither"),
            Variant("DP-GCL", {"objective.augmentations": 0}, setting="bgc"),
            Variant("DP-GCL", {"objective.augmentations": 1}, setting="bgc+isa"),
        ),
        table="4",
    ),
    Experiment(
        "table5",
        "Which attention projections get adapters (DP-GCL, Table 5)",
        CAPTIONED,
        table="5",
        sweep="table5",
        pretrained=True,
    ),
    Experiment("table6", "How many further views of each negative (DP-GCL, Table 6)", CAPTIONED, table="6", sweep="table6"),
    Experiment(
        "table7", "One image and one text augmentation at a time (DP-GCL, Table 7)", ("cuhk-pedes",), table="7", sweep="table7"
    ),
    Experiment(
        "table13",
        "What privacy costs: epsilon 10 and no privacy (DP-GCL, Table 13)",
        EVERYWHERE,
        (_method("Non-Private", "none"), GROUP),
        table="13",
    ),
    Experiment("figure2", "Accuracy during training (DP-GCL, Figure 2)", EVERYWHERE, COMPARED, on_the_way=20),
    Experiment(
        "figure3",
        "Accuracy against batch size (DP-GCL, Figure 3)",
        EVERYWHERE,
        _along("privacy.batch", _BATCHES, COMPARED),
        axis="batch B",
        largest_on_cpu=512,
        small={"model.embedding": 8},  # the cost of per-record and similarity clipping grows with it
    ),
    Experiment(
        "figure4",
        "Accuracy against group size (DP-GCL, Figure 4)",
        EVERYWHERE,
        (
            *_along("bounding.group_size", _GROUP_SIZES, [_method("without privacy", "none")]),
            *_group_sizes(augmentations=0),
            *_group_sizes(augmentations=1),
        ),
        axis="group size S",
        largest_on_cpu=64,
    ),
    Experiment("figure5", "Which image tower (DP-GCL, Figure 5)", CAPTIONED, sweep="figure5", pretrained=True),
    Experiment(
        "figure6",
        "Accuracy against epsilon (DP-GCL, Figure 6)",
        EVERYWHERE,
        _along("privacy.epsilon", (0.2, 1.0, 5.0, 10.0, 15.0, 20.0), [GROUP, PUBLIC]),
        axis="epsilon",
    ),
    Experiment(
        "objectives",
        "Other losses inside a group, and BatchNorm with public anchors, before and after training",
        IMAGES,
        (
            *_with_before("InfoNCE", {"objective": {"name": "infonce", "temperature": 0.2}}),
            *_with_before(
                "InfoNCE, BatchNorm", {"objective": {"name": "infonce", "temperature": 0.2}, "model.normalisation": "batch"}
            ),
            *_with_before("SigLIP", {"objective": {"name": "siglip"}}),
            *_with_before("Barlow Twins", {"objective": {"name": "barlow_twins"}}),
        ),
        # Correlations over four records are mostly chance, and 100 steps of 512 records change a model little.
        small={
            "privacy.batch": 2048,
            "bounding.group_size": 16,
            "model.embedding": 64,
            "optimizer.learning_rate": 2e-3,
            "evaluation.records": 5000,
        },
    ),
    Experiment(
        "recipe",
        "A recipe of our own beside the paper's, before and after training, all records measured",
        ("cifar10",),
        (*_with_before("DP-GCL", {}), *_with_before("DP-GCL, pyramid", _PYRAMID), *_with_before("recipe", _RECIPE)),
        epsilons=(1.0, 10.0),
        small={"evaluation.records": 0, "evaluation.bank": 0},
    ),
    Experiment(
        "methods",
        "Methods that train by gradients: same records, epsilon and delta; batch clipping at two learning rates",
        (SHAPES.name,),
        tuple(
            Variant(method, {"bounding.method": method, "optimizer.learning_rate": rate}, setting=f"rate {rate:g}")
            for method in ("group", "public", "batch", "sample", "logit", "released", "dpcl", "none")
            # The quickstart's rate; two rates for batch clipping, the cheapest method; and a suitable rate without noise.
            for rate in {"batch": (3e-3, 1e-3), "none": (1e-3,)}.get(method, (3e-3,))
        ),
        epsilons=(8.0,),
        # The quickstart's values except its embedding of 64, with which per-record and similarity clipping would take a night.
        small={"privacy.batch": 2048, "privacy.steps": 100, "model.embedding": 8},
    ),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _EXPERIMENTS}


_PUBLISHED_ONLY = "is not reproduced; its published figures are in benchmarks/published"
_ELSEWHERE = {
    **dict.fromkeys(("table2", "table9", "table11", "table14"), _PUBLISHED_ONLY),
    "table12": "is what `dpfed audit membership RUN` measures for a run of yours",
    **dict.fromkeys(("figure8", "figure9"), "was drawn once: docs/reproduce.md shows it"),
}


def experiment(name: str) -> Experiment:
    """Returns an experiment by its name.

    Raises:
        UserError: If `dpfed reproduce` has no experiment of this name.
    """
    if name in _ELSEWHERE:
        raise UserError(f"{name} {_ELSEWHERE[name]}. [experiment-elsewhere]")
    if name not in EXPERIMENTS:
        raise UserError(f"no experiment '{name}': {nearest(name, EXPERIMENTS)} See `dpfed reproduce --list`. [experiment-none]")
    return EXPERIMENTS[name]
