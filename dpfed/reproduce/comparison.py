"""What an experiment is: runs that differ in a few keys, and what is drawn of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from dpfed.config.shipped import configs
from dpfed.config.toml_file import read_toml
from dpfed.errors import UserError, nearest

Chart = Literal["bars", "steps", "loss", "line", "snr", "mechanism"]


@dataclass(frozen=True)
class Variant:
    """One run of an experiment, for each epsilon.

    Attributes:
        label: of the run or of its curve; the method's name in the paper.
        changes: to the configuration, by key such as ``bounding.group_size``.
        setting: the column of the published figures that tells runs of one method apart.
        x: where the run stands on the horizontal axis of a line.
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
        charts: what is drawn.
        epsilons: the promises at which every variant is trained.
        table: of the DP-GCL paper, whose figures stand beside ours; ``None`` for a figure, of which no numbers are printed.
        axis: the name of `Variant.x`.
        largest_on_cpu: variants beyond this `x` are left out at ``--scale cpu``.
        on_the_way: evaluations and checkpoints during training.
        raw: needs raw diagnostics, and so public records.
        timed: the steps of the methods are timed in turns, which wants public records, too.
        sweep: the file in ``configs/sweeps/`` that has the variants.
        pretrained: it is about the pretrained towers, which ``--scale cpu`` does not have.
        small: what ``--scale cpu`` changes beyond what the data set does; for generated data, which are small, at either scale.
    """

    name: str
    title: str
    data: tuple[str, ...]
    variants: tuple[Variant, ...] = ()
    charts: tuple[Chart, ...] = ("bars",)
    epsilons: tuple[float, ...] = (10.0,)
    table: str | None = None
    axis: str = ""
    largest_on_cpu: float | None = None
    on_the_way: int = 0
    raw: bool = False
    timed: bool = False
    sweep: str | None = None
    pretrained: bool = False
    small: dict[str, Any] = field(default_factory=dict)

    @property
    def needs_public(self) -> bool:
        """Whether it looks at what no epsilon covers: raw figures of single steps, and how long they take."""
        return self.raw or self.timed

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
            raise UserError(f"{self.name} does not compare a method '{method}'; {nearest(method, offered)}")
        limit = self.largest_on_cpu if scale == "cpu" else None
        return tuple(v for v in variants if v.method in wanted and (limit is None or v.x is None or v.x <= limit))

    def count(self, scale: str) -> int:
        """How many runs it trains: one for each variant and epsilon, and a single one where there is no privacy."""
        trained = [variant for variant in self.chosen(scale, None) if not variant.untrained]
        without = sum(variant.method == "none" for variant in trained)
        return without + (len(trained) - without) * len(self.epsilons)
