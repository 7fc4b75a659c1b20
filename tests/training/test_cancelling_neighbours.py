"""Neighbouring record sets whose gradients nearly cancel: a record moves the sum by the sensitivity at most."""

import itertools

import numpy as np
import pytest
import torch

from dpfed.config import parse_config
from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from dpfed.training import worker as worker_room
from tests.sparing import sparing
from tests.training.records_of_worker import keep_only

TOWERS = dict(kind="image-text", width=8, text_width=16, text_layers=1, vocabulary=128, embedding=16, context=8)
IMAGES = {"kind": "image", "width": 8, "embedding": 16, "head_hidden": 16}


def stored(path, kind: str, text: bool, records: int):
    """Records that are all black, all equal, or of noise; one of them may be another."""
    generator = np.random.default_rng(4)
    one = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    with StoreWriter(path, name="cancelling", kind="image-text" if text else "image", size=16) as writer:
        for number in range(records):
            image = {"black": np.zeros_like(one), "equal": one}.get(kind)
            image = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8) if image is None else image
            writer.add(RecordInput(f"r{number}", image, (f"word {number if kind == 'noise' else 0}",) if text else ()))
    return path


def parts_of(tmp_path, public_store, text, engine, clip, kind, precision, method="group", bias=0.0, records=160):
    bounding = {"method": method, "engine": engine, "microbatch": 4096, **clip}
    tree = {
        "name": "cancelling",
        "data": {"source": "store", "path": str(stored(tmp_path / "store", kind, text, records)), "size": 16},
        "model": TOWERS if text else IMAGES,
        "bounding": bounding | ({"group_size": 4} if method == "group" else {}),
        "privacy": {"noise_multiplier": 0.5, "batch": records * 2 // 3, "steps": 4, "delta": 1e-3, "accountant": "rdp"},
        "training": {"device": "cpu", "precision": precision},
        "evaluation": {"split": "none"},
        "objective": {"temperature": 0.05 if bias else 0.2},
    }
    if method == "public":
        tree["public"] = {"path": str(public_store.path), "records": 3}
    parts = build(parse_config(tree), Randomness.from_seed(3))
    with torch.no_grad():
        for name, parameter in parts.model.named_parameters():
            if name.endswith("bias") and bias:
                parameter.add_(bias * torch.randn(parameter.shape))
    return parts


def moved(parts, seed) -> float:
    """The most that one of some drawn records moves the sum, over the sensitivity."""
    rows, keys, randomness = parts.store.split("train"), parts.store.keys, Randomness.from_seed(seed)
    drawn = worker_room.draw_step(parts.plan, randomness, 0, rows, keys[rows], parts.plan.groups).indices
    sums = []
    for gone in (None, *drawn[:: len(drawn) // 3]):
        worker = parts.learner.worker(randomness)
        keep_only(worker, rows if gone is None else rows[rows != gone], keys)
        sums.append(worker.bounded_sum(0).numbers())
    return max((sums[0] - less).norm().item() / parts.plan.sensitivity for less in sums[1:])


CLIPS = {
    "automatic": {"clipping": "automatic", "stability": 1e-4},
    "C = 0.01": {"clip_norm": 0.01},
    "the least C": {"clip_norm": 1e-5},
}


KINDS = ((False, "black"), (True, "black"), (False, "equal"), (True, "noise"))
CASES = tuple(itertools.product(KINDS, CLIPS, ("loop", "layerwise"), ("fp32", "bf16")))


def is_quick(records, clip, engine, precision):
    """Half of the clips in passes that groups share, and everything else once."""
    even = (KINDS.index(records) + list(CLIPS).index(clip)) % 2 == 0
    of_passes = engine == "layerwise" and (even if precision == "fp32" else clip == "automatic" and not even)
    return of_passes or (records, clip, engine, precision) in (
        (KINDS[1], "automatic", "loop", "fp32"),
        (KINDS[2], "C = 0.01", "loop", "bf16"),
    )


@pytest.mark.parametrize(
    ("records", "clip", "engine", "precision"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (not is_quick(*case))) for case in CASES],
)
def test_neighbours_whose_gradients_cancel_stay_within_the_bound(tmp_path, public_store, records, clip, engine, precision):
    text, kind = records
    assert moved(parts_of(tmp_path, public_store, text, engine, CLIPS[clip], kind, precision), 11) <= 1


@pytest.mark.parametrize("seed", sparing([5, 9, 19], 5))
@pytest.mark.parametrize(("text", "kind", "bias"), [(True, "noise", 1e6), (False, "black", 0.0)])
def test_neighbours_of_a_long_sum_stay_within_the_bound(tmp_path, public_store, text, kind, bias, seed):
    """Collapsed towers, and images that are all black, with a stability that no configuration has any more."""
    clip = CLIPS["automatic"]
    parts = parts_of(tmp_path, public_store, text, "layerwise", clip, kind, "fp32", bias=bias, records=600)
    object.__setattr__(parts.plan.bounding, "stability", 1e-9)
    assert moved(parts, seed) <= 1


@pytest.mark.parametrize("engine", sparing(["loop", "layerwise"], "layerwise"))
def test_neighbours_beside_public_records_stay_within_the_bound(tmp_path, public_store, engine):
    parts = parts_of(tmp_path, public_store, True, engine, CLIPS["automatic"], "black", "fp32", "public")
    assert 0 < moved(parts, 0) <= 1
