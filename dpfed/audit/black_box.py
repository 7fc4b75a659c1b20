"""Canaries in the black box: pairs of image and text as unlike all others as can be, and the model's embeddings of them.

The run's own model, loss and views are trained once, on generated shapes and canaries: pictures of random blocks with captions
of made-up words. Only training can have brought a canary's image and caption (or its two views) together, so the score is how
much closer they came. Whoever can ask the model for embeddings before and after can compute it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from dpfed.audit.leaving import Kept
from dpfed.audit.under_test import Scale
from dpfed.config import Config, DataConfig, EvaluationConfig
from dpfed.data.generated.shapes import SIDE, write_shapes
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.models.contract import embeddings_of
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Watcher
from dpfed.runs.assembly import Components, Share, assemble
from dpfed.runs.resolution import resolve
from dpfed.training.trainer import InProcess, train

_BLOCKS = 8  # of a canary's picture, on a side
_WORDS, _LETTERS = 8, 6  # of its caption
_DRAWS = 4  # of a canary's views, for its score
_AT_ONCE = 64


def write_pairs(path: Path, fillers: int, canaries: int) -> RecordStore:
    """Writes a public store: canaries first, then generated shapes."""
    write_shapes(path.with_name("shapes"), train=fillers, validation=0, test=0)
    shapes, generator = RecordStore.open(path.with_name("shapes")), np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    with StoreWriter(path, name="pairs", kind="image-text", size=SIDE, public=True, unit_name="unit") as writer:
        for number in range(canaries):
            blocks = generator.integers(0, 256, (_BLOCKS, _BLOCKS, 3), dtype=np.uint8)
            image = blocks.repeat(SIDE // _BLOCKS, 0).repeat(SIDE // _BLOCKS, 1)
            words = ("".join(generator.choice(letters, _LETTERS)) for _ in range(_WORDS))
            writer.add(RecordInput(f"canary {number}", image, (" ".join(words),), unit=f"canary {number}"))
        rows = np.arange(len(shapes))
        images = shapes.images(rows, SIDE).permute(0, 2, 3, 1).contiguous().numpy()
        for id_, image, captions in zip(shapes.ids(rows), images, shapes.captions(rows), strict=True):
            writer.add(RecordInput(id_, image, tuple(captions), unit=id_))
    return RecordStore.open(path)


def black_box(
    config: Config, plan: PrivacyPlan, scale: Scale, canaries: int, folder: Path, watcher: Watcher
) -> tuple[PrivacyPlan, np.ndarray, np.ndarray]:
    """Trains once with some of the canaries, and scores all of them.

    Args:
        config: of the run.
        plan: of the run.
        scale: of the small one.
        canaries: m.
        folder: for records and ledger.
        watcher: sees the steps.

    Returns:
        The small run's plan, ``(m,)`` coins, and ``(m,)`` scores.
    """
    store = write_pairs(folder / "pairs", scale.records - canaries, canaries)
    parts = assemble(resolve(_config(config, plan, scale, store), watcher), Randomness.fresh(), watcher)
    owners, views = Randomness.fresh(), Randomness.fresh()
    coins = Randomness.fresh().per_record("coin", 0, store.keys[:canaries], 1)[:, 0] < 0.5
    untrained = copy.deepcopy(parts.model)
    present = np.flatnonzero(np.concatenate([coins, np.ones(len(store) - canaries, bool)]))
    coordinator = parts.coordinator(Randomness.fresh(), Ledger.create(folder / "ledger.jsonl", parts.plan), Kept())
    advance = watcher.stage("steps", parts.plan.steps)
    worker = parts.worker(owners, share=Share(0, present, parts.plan.groups))
    train(InProcess([worker]), coordinator, range(parts.plan.steps), advance=advance)
    rows = np.arange(canaries)
    closer = _closeness(parts, parts.model, rows, views) - _closeness(parts, untrained, rows, views)
    return parts.plan, coins, closer


def _config(config: Config, plan: PrivacyPlan, scale: Scale, store: RecordStore) -> Config:
    """The run's configuration, with generated records and the noise of its plan."""
    privacy = {"epsilon": None, "noise_multiplier": plan.noise_multiplier, "delta": plan.delta}
    return config.model_copy(
        update={
            "data": DataConfig(source="store", path=str(store.path), size=config.data.size, resize=config.data.resize),
            "privacy": config.privacy.model_copy(update={**privacy, "batch": scale.batch, "steps": scale.steps, "seed": None}),
            "evaluation": EvaluationConfig(split="none"),
            "diagnostics": "none",
        }
    )


@torch.no_grad()
def _closeness(parts: Components, model: nn.Module, rows: np.ndarray, randomness: Randomness) -> np.ndarray:
    """``(m,)`` mean cosine between a record's image and caption, or between two of its views."""
    model.eval()
    make, total = dataclasses.replace(parts, model=model).view_maker(augmentations=0), np.zeros(len(rows))
    for draw in range(_DRAWS):
        parts_of = [_pairs(model, make(some, randomness, draw, parts.device)) for some in _chunks(rows)]
        total += torch.cat(parts_of).cpu().double().numpy()
    return total / _DRAWS


def _pairs(model: nn.Module, views: dict[str, Tensor]) -> Tensor:
    embeddings = {name: normalize(z.float(), dim=-1) for name, z in embeddings_of(model, views).items() if name in views}
    images = embeddings["image"]
    other = embeddings["text"][:, 0] if "text" in embeddings else images[:, 1]
    return (images[:, 0] * other).sum(1)


def _chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), _AT_ONCE):
        yield rows[start : start + _AT_ONCE]
