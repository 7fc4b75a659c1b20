"""Runs the evaluation tasks on one model, and returns their figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dpfed.errors import UserError
from dpfed.evaluation.features import Embedder
from dpfed.evaluation.intervals import Outcomes
from dpfed.evaluation.knn import knn_correct
from dpfed.evaluation.linear_probe import linear_probe_right
from dpfed.evaluation.measured import Evaluation, Which
from dpfed.evaluation.options import EvaluationConfig
from dpfed.evaluation.retrieval import chance_of_recall, retrieval_ranks, right_pairs, summary
from dpfed.evaluation.tasks import class_columns, label_columns
from dpfed.evaluation.zero_shot import class_embeddings, zero_shot_right

if TYPE_CHECKING:
    from dpfed.data.record_set import RecordSet

Figure = tuple[str, Outcomes, str, float | None]  # name, outcome of each query, protocol, chance
EmbedRows = Callable[[np.ndarray], Tensor]
EmbedTexts = Callable[[list[str]], Tensor]


def evaluate(
    embedder: Embedder, store: RecordSet, options: EvaluationConfig, tasks: tuple[str, ...], which: Which, step: int
) -> list[Evaluation]:
    """Measures a model on held-out records.

    Args:
        embedder: Embedder, which computes features and embeddings of records and captions with the model.
        store: Records; for k-NN and the linear probe, training records are read with their labels.
        options: Options that choose the split and the numbers of records.
        tasks: Tasks to measure (`tasks_of`).
        which: Whether this is the trained or the untrained model.
        step: Number of training steps that the model has seen.

    Raises:
        UserError: If no record has a caption or label that a task needs, the model lacks a method that a task needs, or an
            image cannot be read.
        ValueError: If a task needs text, and the embedder has no tokenizer.
    """
    if embedder.tokenizer is None and {"retrieval", "zero_shot"} & set(tasks):
        raise ValueError("retrieval and zero-shot need the tokenizer of the text tower")

    def features(indices: np.ndarray) -> Tensor:
        return embedder.features(indices).to(embedder.device)

    def images(indices: np.ndarray) -> Tensor:
        return embedder.images(indices).to(embedder.device)

    def texts(captions: list[str]) -> Tensor:
        return embedder.texts(captions).to(embedder.device)

    figures: list[Figure] = []
    if "retrieval" in tasks:
        figures += _retrieval(store, options, images, texts)
    if "zero_shot" in tasks:
        figures += _zero_shot(store, options, images, texts)
    if "knn" in tasks or "linear" in tasks:
        figures += _classification(store, options, features, tasks)
    split = options.split
    return [
        Evaluation(
            name,
            outcomes.figure(),
            which,
            split,
            protocol,
            step,
            len(outcomes.values),
            outcomes.interval(),
            chance=chance,
            outcomes=outcomes,
        )
        for name, outcomes, protocol, chance in figures
    ]


def subset(store: RecordSet, indices: np.ndarray, limit: int) -> np.ndarray:
    """Returns the indices of the `limit` records with the smallest keys (0: all), whatever the records' order in the store."""
    if not limit or limit >= len(indices):
        return indices
    return np.sort(indices[np.argsort(store.keys[indices], kind="stable")[:limit]])


def _retrieval(store: RecordSet, options: EvaluationConfig, images: EmbedRows, texts: EmbedTexts) -> list[Figure]:
    indices = store.split(options.split)
    captions = store.captions(indices)
    captioned = np.array([bool(of_record) for of_record in captions])
    if not captioned.any():
        raise UserError(
            f"no record of the '{options.split}' split of {store.name} has a caption: choose another evaluation.split, or "
            "evaluation.tasks without retrieval. [eval-no-caption]"
        )
    indices = subset(store, indices[captioned], options.records)
    units = store.units[indices] if options.match == "unit" and store.units is not None else None
    candidates, of_images, of_captions = right_pairs(store.captions(indices), units)
    image_z, text_z = images(indices), texts(candidates)
    right = "all images with an equal caption" if units is None else f"all that show the same {store.unit_name}"
    protocol = (
        f"cosine, {len(indices)} images against {len(candidates)} captions (equal captions counted once); right are {right}; "
        "ties count against the model"
    )
    by_direction = retrieval_ranks(image_z, text_z, of_images.to(image_z.device), of_captions.to(image_z.device))
    image_clusters = _clusters(store, indices)
    # A caption belongs to the cluster of the first of its images.
    of_text = np.full(len(candidates), len(indices))
    np.minimum.at(of_text, of_captions.numpy(), of_images.numpy())
    clusters = {"image_to_text": image_clusters, "text_to_image": image_clusters[of_text]}
    sides = {
        "image_to_text": (torch.bincount(of_images), len(candidates)),
        "text_to_image": (torch.bincount(of_captions), len(indices)),
    }
    return [
        (name, outcomes, protocol, chance_of_recall(name, *sides[direction]))
        for direction, ranked in by_direction.items()
        for name, outcomes in summary(direction, ranked, clusters[direction]).items()
    ]


def _zero_shot(store: RecordSet, options: EvaluationConfig, images: EmbedRows, texts: EmbedTexts) -> list[Figure]:
    columns = class_columns(store, options)
    indices = store.split(options.split)
    labelled = np.stack([store.labels[name][indices] >= 0 for name in columns]).any(axis=0)
    indices = subset(store, indices[labelled], options.records)
    image_z = images(indices)
    templates = options.templates
    figures: list[Figure] = []
    for column in columns:
        data, labels = _with_labels(store.labels[column][indices], image_z)
        clusters = _clusters(store, indices[store.labels[column][indices] >= 0])
        if not len(data):
            raise UserError(
                f"no held-out record among the {options.records:,} of evaluation.records has a '{column}' label; raise "
                "evaluation.records (0: all records). [eval-no-label]"
            )
        names = store.label_names[column]
        class_z = class_embeddings(names, templates, texts)
        prompts = f"'{templates[0]}'" if len(templates) == 1 else f"the mean of {len(templates)} prompts"
        protocol = f"cosine to {prompts}, {len(names)} classes, {len(data)} held-out records; ties count against the model"
        by_metric = zero_shot_right(data, class_z, labels)
        figures += [
            (f"{name}{_suffix(store, column)}", _shares(right, clusters), protocol, (5 if "top5" in name else 1) / len(names))
            for name, right in by_metric.items()
        ]
    return figures


def _classification(store: RecordSet, options: EvaluationConfig, features: EmbedRows, tasks: tuple[str, ...]) -> list[Figure]:
    columns = label_columns(store, options)
    sides = []
    for split, limit in (("train", options.bank), (options.split, options.records)):
        indices = np.sort(store.smallest(_labelled(store, columns, split), limit or len(store)))
        sides.append((indices, features(indices)))
    figures: list[Figure] = []
    for column in columns:
        (bank, known), (held, wanted) = (_with_labels(store.labels[column][indices], x) for indices, x in sides)
        for chosen, number, what in ((bank, "bank", "training"), (held, "records", "held-out")):
            if not len(chosen):
                raise UserError(
                    f"no {what} record among the {getattr(options, number):,} of evaluation.{number} has a '{column}' label; "
                    f"raise evaluation.{number} (0: all records). [eval-bank-no-label]"
                )
        suffix = _suffix(store, column)
        counts = f"{len(bank)} labelled training records, {len(held)} held-out records"
        clusters = _clusters(store, sides[1][0][store.labels[column][sides[1][0]] >= 0])
        measured = []
        if "knn" in tasks:
            wide = min(200, len(bank))
            measured.append(("knn3_accuracy", knn_correct(bank, known, held, wanted, k=3), "3-NN, cosine"))
            votes = knn_correct(bank, known, held, wanted, k=200, temperature=0.1)
            measured.append(("knn200_accuracy", votes, f"{wide}-NN, votes weighted by exp(cosine / 0.1)"))
        if "linear" in tasks:
            measured.append(
                (
                    "linear_probe_accuracy",
                    linear_probe_right(bank, known, held, wanted),
                    "logistic regression on frozen features",
                )
            )
        classes = len(known.unique())
        figures += [
            (f"{name}{suffix}", _shares(right, clusters), f"{how}, {counts}", 1 / classes) for name, right, how in measured
        ]
    return figures


def _labelled(store: RecordSet, columns: list[str], split: str) -> Callable[[int, int], np.ndarray]:
    """Returns a function from a range of rows (first, end) to a mask over the range: whether a row counts.

    A row counts if it belongs to the split, and has a value in at least one of the label columns.
    """
    of_split = store.within(split)

    def rows(first: int, end: int) -> np.ndarray:
        return of_split(first, end) & np.logical_or.reduce([store.labels[name][first:end] >= 0 for name in columns])

    return rows


def _clusters(store: RecordSet, indices: np.ndarray) -> np.ndarray:
    """Returns the cluster of each record: its unit, or the record itself if the store has no units."""
    if store.units is None:
        return np.arange(len(indices))
    return np.unique(store.units[indices], return_inverse=True)[1]


def _shares(right: Tensor, clusters: np.ndarray) -> Outcomes:
    return Outcomes(right.double().numpy(), clusters)


def _suffix(store: RecordSet, column: str) -> str:
    return f"[{column}]" if len(store.labels) > 1 else ""


def _with_labels(labels: np.ndarray, x: Tensor) -> tuple[Tensor, Tensor]:
    keep = torch.from_numpy(labels >= 0).to(x.device)
    return x[keep], torch.from_numpy(np.asarray(labels, dtype=np.int64)).to(x.device)[keep]
