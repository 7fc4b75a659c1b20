"""Compares public bases of private moments with random rows, on the sets and towers of `benchmarks.moments`.

    python -m benchmarks.moment_basis PLACE WORK symbols=CHECKOUT tiles=CHECKOUT icons=CHECKOUT cifar10=FOLDER

There are three bases: ``random`` rows; ``generated``, the default of dpfed; and ``near``, made of the pictures and names of the
other two libraries. ``random`` and ``generated, last layer`` take the last layer of each tower. ``generated`` and ``near`` take
several layers, as a run does. N is from 300 to 30,000, epsilon from 0.1 to 10, with five draws of the noise. The benchmark
draws both releases itself: exact moments in float64 with Gaussian noise. It uses dpfed's layout, shares of the noise, number of
dimensions k, and heads, but not the grid of dpfed's sums. The figures are those of `benchmarks.moments`. The benchmark
overwrites ``benchmarks/results/moment-basis.json``; features stay in WORK.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.frozen_towers import Bench, bench, figure_of, towers
from benchmarks.moments import SEEDS, chance
from benchmarks.picture_sets import cifar_store, icons, named_store, symbols, tiles
from benchmarks.record import write_result
from dpfed.bounding.methods.moments import BASIS_ROWS, CROSS_SHARE, CROSS_SHARE_OF_PUBLIC, MEAN_SHARE
from dpfed.building.plan import plan_of
from dpfed.models.basis import Basis, Side, principal_basis, random_bases
from dpfed.models.moment_heads import MomentNoise, centres, heads
from dpfed.models.moment_layout import MomentLayout, Moments, dimensions_for

NAME = "moment-basis"
EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0, 10.0, None)
HARDLY_ANY = 0.1  # sigma
_MAKERS = {"symbols": symbols, "tiles": tiles, "icons": icons}
Bases = Mapping[Side, Basis]


def features_of(pictures: Bench, split: str) -> dict[Side, Tensor]:
    """Returns the features of a set's records by tower, float64 ``(n, F)``. Text features are the mean of a record's captions.

    Args:
        pictures: Set of pictures.
        split: Split: ``train`` or ``test``.
    """
    shards = list((pictures.train if split == "train" else pictures.test).shards())
    texts = torch.cat([shard.text_means for shard in shards if shard.text_means is not None])
    return {"image": torch.cat([shard.image[:, 0] for shard in shards]).double(), "text": texts.double()}


def near(others: list[Bench]) -> Bases:
    """Returns the basis of all records of other sets."""
    features = [features_of(other, split) for other in others for split in ("train", "test")]
    return {side: principal_basis(torch.cat([part[side] for part in features]), BASIS_ROWS) for side in ("image", "text")}


def drawn(
    pictures: Bench, features: dict[Side, Tensor], bases: Bases | None, count: int, epsilon: float | None, seed: int
) -> dict[str, Any]:
    """Returns the figure of one run, and its number of dimensions k.

    Args:
        pictures: Set of pictures.
        features: Features of the training records (`features_of`).
        bases: Bases of the towers; ``None``: random rows.
        count: N, number of training records.
        epsilon: Epsilon of the run; ``None``: hardly any noise.
        seed: Seed of the noise.
    """
    config = pictures.parts.config
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"epsilon": epsilon})})
    sigma = plan_of(count, config).noise.multiplier if epsilon else HARDLY_ANY
    widths = tuple(side.shape[1] if bases is None else len(bases[name].rows) for name, side in features.items())
    k = dimensions_for(count, sigma, widths, public=bases is not None)
    made = random_bases(widths, k, False) if bases is None else {side: basis.first(k) for side, basis in bases.items()}
    layout = MomentLayout(k, 2, MEAN_SHARE, CROSS_SHARE if bases is None else CROSS_SHARE_OF_PUBLIC)
    units = [in_basis(made[side], features[side][:count]) for side in made]
    apart, matrices = released(layout, MomentNoise(count, sigma), units, seed)
    embed = [
        lambda given, side=side, centre=centre, matrix=matrix: (in_basis(made[side], given.double()) - centre) @ matrix
        for side, centre, matrix in zip(made, apart, matrices, strict=True)
    ]
    return {"dimensions": k, "figure": round(figure_of(pictures, embed[0], embed[1]), 4)}


def released(layout: MomentLayout, noise: MomentNoise, units: list[Tensor], seed: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Returns the centres ``(2, k)`` and the two heads ``(k, k)`` of one draw of the noise, float64.

    Args:
        layout: Layout of the sums.
        noise: Noise of the release.
        units: Features of images and of texts in the basis, ``(N, k)`` each.
        seed: Seed of the noise.
    """
    generator, std = torch.Generator().manual_seed(seed), noise.std / noise.records
    nothing = torch.zeros(0, dtype=torch.float64)
    first = layout.encoded(0, Moments(torch.stack([unit.mean(0) for unit in units]), nothing, nothing))
    vector = torch.zeros(layout.numel, dtype=torch.float64)
    vector[layout.place(0)] = first + std * torch.randn(first.shape, generator=generator, dtype=torch.float64)
    apart = centres(layout, noise, layout.decoded(vector))
    x, y = (F.normalize(unit - centre, dim=1) for unit, centre in zip(units, apart, strict=True))
    second = layout.encoded(1, Moments(nothing, x.T @ y / len(x), torch.stack([x.T @ x, y.T @ y]) / len(x)))
    vector[layout.place(1)] = second + std * torch.randn(second.shape, generator=generator, dtype=torch.float64)
    return apart, heads(layout, noise, layout.decoded(vector), False)


def in_basis(basis: Basis, features: Tensor) -> Tensor:
    """Projects features ``(n, F)`` onto a basis, and scales them to unit length, float64."""
    rows, centre = basis.rows.double(), None if basis.centre is None else basis.centre.double()
    return Basis(rows, centre).project(features)


def main(place: str, work: str, *given: str) -> None:
    """Measures sets of pictures, and writes the result after each.

    Args:
        place: Folder with the packages of the towers.
        work: Folder of stores and features.
        *given: Sets, each ``NAME=PATH``.
    """
    files, folder = towers(Path(place)), Path(work)
    benches: dict[str, Bench] = {}
    last: dict[str, Bench] = {}
    for name, path in (text.split("=", 1) for text in given):
        is_cifar = name == "cifar10"
        store = cifar_store(Path(path), folder / name) if is_cifar else named_store(_MAKERS[name](Path(path)), folder / name)
        for layers, into in (("several", benches), ("last", last)):
            into[name] = bench(store, 64 if is_cifar else 128, files, folder, layers)
    sets: dict[str, Any] = {}
    for name, data in benches.items():
        others = [other for label, other in benches.items() if label not in (name, "cifar10")]
        kinds: dict[str, tuple[Bench, Bases | None]] = {"random": (last[name], None)}
        for kind, source in (("generated, last layer", last[name]), ("generated", data)):
            assert source.basis is not None
            kinds[kind] = source, source.basis.bases
        if name != "cifar10" and others:
            kinds["near"] = data, near(others)
        measure = "accuracy" if name == "cifar10" else "R@10"
        facts = {"records": len(data.train), "held out": len(data.test), "measure": measure, "public": round(chance(data), 4)}
        sets[name] = {**facts, "basis": data.basis.fingerprint if data.basis else None, "rows": []}
        features = {kind: features_of(source, "train") for kind, (source, _) in kinds.items()}
        for count in data.counts():
            for epsilon in EPSILONS:
                for kind, (source, basis) in kinds.items():
                    runs = [drawn(source, features[kind], basis, count, epsilon, seed) for seed in SEEDS]
                    row = {"basis": kind, "records": count, "epsilon": epsilon, "dimensions": runs[0]["dimensions"]}
                    sets[name]["rows"].append({**row, "figures": [run["figure"] for run in runs]})
                    mean = 100 * sum(run["figure"] for run in runs) / len(runs)
                    assert math.isfinite(mean)
                    print(name, row, f"{mean:.1f}", flush=True)
        write_result(NAME, {"sets": sets}, seeds=list(SEEDS))


if __name__ == "__main__":
    main(*sys.argv[1:])
