"""The evaluations of a run: which tasks the held-out records allow, and their results as plain facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import nn

from dpfed.config import Config
from dpfed.errors import UserError
from dpfed.evaluation.features import ImagesFn, Tokenizer, embed_captions, embed_images, extract
from dpfed.evaluation.knn import knn_accuracy
from dpfed.evaluation.linear_probe import linear_probe_accuracy
from dpfed.evaluation.retrieval import retrieval_metrics

if TYPE_CHECKING:
    from dpfed.data.records import RecordStore

Which = Literal["trained", "untrained"]


@dataclass(frozen=True)
class Evaluation:
    """One measured figure.

    Attributes:
        name: metric, such as ``text_to_image_R@10`` or ``knn3_accuracy[shape]``.
        value: a fraction in [0, 1]; for ranks, 1 and above.
        model: ``trained`` or ``untrained``.
        split: of the records that were measured.
        protocol: how it was measured, for people.
        step: training steps that the model had seen.
    """

    name: str
    value: float
    model: Which
    split: str
    protocol: str
    step: int


def tasks_of(store: RecordStore, config: Config) -> tuple[str, ...]:
    """The tasks that `evaluate` will run: those the config names or, if it names none, all that the records allow.

    ``evaluation.split = "none"`` measures nothing.

    Call it before training, so that an impossible task is known before any budget is spent.

    Raises:
        UserError: for an empty split, or a task that the config names and this store or model cannot do.
    """
    if config.evaluation.split == "none":
        return ()
    reasons = {"retrieval": _no_retrieval(store, config), "knn": _no_labels(store, config), "linear": _no_labels(store, config)}
    if not config.evaluation.tasks:
        if empty := _no_records(store, config):
            raise UserError(f"{empty}; evaluation.split = 'none' trains without measuring.")
        return tuple(task for task, reason in reasons.items() if reason is None)
    for task in config.evaluation.tasks:
        if reasons[task] is not None:
            raise UserError(f"evaluation.tasks names '{task}', but {reasons[task]}.")
    return config.evaluation.tasks


def evaluate(
    model: nn.Module,
    store: RecordStore,
    config: Config,
    images_fn: ImagesFn,
    tokenizer: Tokenizer | None,
    which: Which,
    step: int,
    device: torch.device | str,
) -> list[Evaluation]:
    """Measures a model on held-out records.

    Args:
        model: with ``features``, and for retrieval ``embed_images`` and ``embed_text``.
        store: the records; labels of the training split are read for k-NN and the linear probe.
        config: ``evaluation`` chooses tasks, split and sizes; ``data.size`` the image side in pixels.
        images_fn: normally ``ImageViews.plain``.
        tokenizer: texts to int64 tokens ``(n, L)``; only retrieval needs it.
        which: is this the trained or the untrained model.
        step: training steps that the model has seen.
        device: where the model is.

    Raises:
        UserError: see `tasks_of`.
    """
    tasks = tasks_of(store, config)
    figures: list[tuple[str, float, str]] = []
    if "retrieval" in tasks:
        figures += _retrieval(model, store, config, images_fn, tokenizer, device)
    if "knn" in tasks or "linear" in tasks:
        figures += _classification(model, store, config, images_fn, device, tasks)
    split = config.evaluation.split
    return [Evaluation(name, value, which, split, protocol, step) for name, value, protocol in figures]


def subset(store: RecordStore, rows: np.ndarray, limit: int) -> np.ndarray:
    """The ``limit`` rows with the smallest keys (all for 0): always the same records, whatever their order in the store."""
    if not limit or limit >= len(rows):
        return rows
    return np.sort(rows[np.argsort(store.keys[rows], kind="stable")[:limit]])


def _no_retrieval(store: RecordStore, config: Config) -> str | None:
    if store.kind != "image-text":
        return f"the records of {store.name} have no captions"
    if config.model.kind != "image-text":
        return f"model.kind = '{config.model.kind}' has no text tower; retrieval needs 'image-text'"
    return _no_records(store, config)


def _no_records(store: RecordStore, config: Config) -> str | None:
    if len(store.split(config.evaluation.split)) == 0:
        return f"the '{config.evaluation.split}' split of {store.name} is empty; hold records out or choose another split"
    return None


def _no_labels(store: RecordStore, config: Config) -> str | None:
    if not _label_columns(store, config):
        return _no_records(store, config) or (
            f"{store.name} has no labels in both its 'train' and its '{config.evaluation.split}' split"
        )
    return None


def _label_columns(store: RecordStore, config: Config) -> list[str]:
    splits = [store.split("train"), store.split(config.evaluation.split)]
    return [name for name, values in store.labels.items() if all((values[rows] >= 0).any() for rows in splits)]


def _retrieval(
    model: nn.Module,
    store: RecordStore,
    config: Config,
    images_fn: ImagesFn,
    tokenizer: Tokenizer | None,
    device: torch.device | str,
) -> list[tuple[str, float, str]]:
    if tokenizer is None:
        raise ValueError("retrieval needs the tokenizer of the text tower")
    rows = store.split(config.evaluation.split)
    captions = store.captions(rows)
    captioned = np.array([bool(texts) for texts in captions])
    if not captioned.any():
        raise UserError(f"no record of the '{config.evaluation.split}' split of {store.name} has a caption to retrieve.")
    rows = subset(store, rows[captioned], config.evaluation.records)
    captions = store.captions(rows)
    owner = torch.tensor([i for i, texts in enumerate(captions) for _ in texts])
    image_z = embed_images(model, store, rows, images_fn, config.data.size, device)
    text_z = embed_captions(model, [text for texts in captions for text in texts], tokenizer, device)
    protocol = f"cosine, {len(rows)} images against {len(owner)} captions; ties count against the model"
    metrics = retrieval_metrics(image_z.to(device), text_z.to(device), owner.to(device))
    return [(name, value, protocol) for name, value in metrics.items()]


def _classification(
    model: nn.Module,
    store: RecordStore,
    config: Config,
    images_fn: ImagesFn,
    device: torch.device | str,
    tasks: tuple[str, ...],
) -> list[tuple[str, float, str]]:
    columns = _label_columns(store, config)
    labelled = np.stack([store.labels[name] >= 0 for name in columns]).any(axis=0)
    sides = []
    for split, limit in (("train", config.evaluation.bank), (config.evaluation.split, config.evaluation.records)):
        rows = store.split(split)
        rows = subset(store, rows[labelled[rows]], limit)
        sides.append((rows, extract(model, store, rows, images_fn, config.data.size, device).to(device)))
    figures = []
    for column in columns:
        data = [part for rows, x in sides for part in _with_labels(store.labels[column][rows], x)]
        if not len(data[0]) or not len(data[2]):
            raise UserError(
                f"none of the records chosen by evaluation.bank and evaluation.records has a '{column}' label; raise them."
            )
        suffix = f"[{column}]" if len(store.labels) > 1 else ""
        counts = f"{len(data[0])} labelled training records, {len(data[2])} held-out records"
        if "knn" in tasks:
            wide = min(200, len(data[0]))
            figures.append((f"knn3_accuracy{suffix}", knn_accuracy(*data, k=3), f"3-NN, cosine, {counts}"))
            figures.append(
                (
                    f"knn200_accuracy{suffix}",
                    knn_accuracy(*data, k=200, temperature=0.1),
                    f"{wide}-NN, votes weighted by exp(cosine / 0.1), {counts}",
                )
            )
        if "linear" in tasks:
            value = linear_probe_accuracy(*data)
            figures.append((f"linear_probe_accuracy{suffix}", value, f"logistic regression on frozen features, {counts}"))
    return figures


def _with_labels(labels: np.ndarray, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    keep = torch.from_numpy(labels >= 0).to(x.device)
    return x[keep], torch.from_numpy(np.asarray(labels, dtype=np.int64)).to(x.device)[keep]
