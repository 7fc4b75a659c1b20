"""Linear heads behind frozen towers, trained in steps: by DP-GCL, by public contrast, or by DP-GCL from heads of moments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.frozen_towers import Bench, figure_of, moments, run_steps, tree
from dpfed.building.plan import plan_of
from dpfed.config import parse_config
from dpfed.data.public_records import PublicNegatives
from dpfed.features.views import CachedViews
from dpfed.models.contrastive import TwoTowerModel
from dpfed.models.moments import Head
from dpfed.runs.dummy_batch import views_per_image

# Of each: the rates that are tried on icons; T; the share of the records in a step, of 4,096 at most.
RATES = {"DP-GCL heads": (3e-3, 1e-2, 3e-2), "public contrast": (3e-3, 1e-2, 3e-2), "DP-GCL after moments": (3e-4, 1e-3, 3e-3)}
STEPS, SHARE, GROUP = 60, 0.25, 16  # a public group is one record and 15 public ones
TEMPERATURE, DIMENSIONS = 0.1, 128


def heads(bench: Bench, row: dict[str, Any], seed: int, public: Bench | None = None) -> float:
    """Trains heads on the features of a set's first records, and returns their figure (`figure_of`).

    Args:
        bench: Set of pictures.
        row: Settings: ``method``, ``records``, ``epsilon`` (``None``: no privacy) and ``rate``. For ``DP-GCL after moments``,
            both parts get the whole epsilon, so together they spend more than one budget.
        seed: Seed of noise, sampling and initial weights.
        public: Set whose records every record is contrasted with, for public contrast; ``None``: another method.
    """
    count, epsilon = row["records"], row["epsilon"]
    sections = tree(bench.store.path, bench.parts.config.data.size, bench.files)
    sections |= {"views": {"cached": 1}, "adaptation": {"image": "frozen"}}
    sections["data"].pop("stores", None)  # for methods that write no store
    sections["privacy"] = {"seed": 0, "batch": max(32, round(SHARE * min(count, 4096))), "steps": STEPS}
    sections["optimizer"] = {"name": "adam", "learning_rate": row["rate"]}
    if public is not None:
        sections["bounding"] = {"method": "public"}
        sections["public"] = {"path": str(public.store.path), "records": GROUP - 1}
    else:
        method, engine = ("group", "layerwise") if epsilon else ("none", "loop")
        sections["bounding"] = {"method": method, "engine": engine, "group_size": GROUP}
    if epsilon:
        sections["privacy"]["epsilon"] = epsilon
    config = parse_config(sections)
    torch.manual_seed(seed)
    if row["method"] == "DP-GCL after moments":
        model = _behind(bench, count, epsilon or 8.0, seed)
    else:
        made = bench.parts.model
        widths = made.image_encoder.features_dim, made.text_encoder.backbone.spec.width
        image, text = (nn.Linear(width, DIMENSIONS, bias=False) for width in widths)
        model = TwoTowerModel(nn.Identity(), text, image, TEMPERATURE)
    joined = None if public is None else PublicNegatives(_views(public), public.rows, GROUP - 1)
    plan = plan_of(count, config)
    run_steps(bench.store, config, plan, model, _views(bench), bench.rows[:count], seed, joined)
    return figure_of(bench, model.project_images, model.project_text)


def best(bench: Bench, row: dict[str, Any], seeds: tuple[int, ...], public: Bench | None = None) -> dict[str, Any]:
    """Trains heads at the best learning rate. The choice of the rate looks at held-out figures, and its epsilon is not counted.

    Args:
        bench: Set of pictures.
        row: Settings without ``rate``, see `heads`.
        seeds: Seeds; the first one chooses the rate.
        public: Set for public contrast, see `heads`.

    Returns:
        The row with ``rate``, ``steps``, and ``figures``, one for each seed.
    """
    first = {rate: heads(bench, {**row, "rate": rate}, seeds[0], public) for rate in RATES[row["method"]]}
    row = {**row, "rate": max(first, key=first.__getitem__), "steps": STEPS}
    return {**row, "figures": [first[row["rate"]], *(heads(bench, row, seed, public) for seed in seeds[1:])]}


def _behind(bench: Bench, count: int, epsilon: float, seed: int) -> TwoTowerModel:
    """Returns a model that starts from heads of moments; only the heads' matrices are trained, not what precedes them."""
    made, sides = moments(bench, count, epsilon, seed), []
    for side in ("image", "text"):
        head = made.head(side)  # type: ignore[arg-type]
        eye, linear = torch.eye(len(head.matrix)), nn.Linear(*head.matrix.shape, bias=False)
        with torch.no_grad():
            linear.weight.copy_(head.matrix.T)
        sides.append((Head(head.basis, head.centre, eye), linear))
    (image, last), (text, last_of_text) = sides
    return TwoTowerModel(image, nn.Sequential(text, last_of_text), last, TEMPERATURE)


def _views(bench: Bench) -> CachedViews:
    return CachedViews(bench.parts.views.maker(bench.parts.store, views_per_image(bench.parts.config, 0)), bench.train, 1, True)
