"""Chooses a report's pictures. They show public or generated records only, selected by the model's features."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from dpfed.config import Config
from dpfed.evaluation.features import Embedder, ReadImages
from dpfed.evaluation.tasks import class_columns
from dpfed.evaluation.zero_shot import class_embeddings, confusions
from dpfed.models.moments import features_of
from dpfed.report.gallery import Gallery, Section, Strip, Tile
from dpfed.report.places import embedding_maps, most_frequent
from dpfed.report.record_charts import SHOWN, Confusion, Counts

if TYPE_CHECKING:
    from dpfed.data.record_set import RecordSet

POOL = 2_000  # records among which neighbours and answers are looked for


def build_gallery(
    trained: Embedder, store: RecordSet, read: ReadImages, config: Config, untrained: Embedder | None = None
) -> Gallery | None:
    """Builds pictures and charts that show how the model sees held-out records; returns ``None`` unless the store is public.

    Args:
        trained: Embedder of the trained model.
        store: Records.
        read: Function that reads images, indices ``(n,)`` -> images ``(n, C, H, W)``: uint8, or floats for a data set
            of the user's own.
        config: Configuration of the run; ``evaluation.split`` names the split of the records. If the split is ``none``, or has
            no records, all splits are used.
        untrained: Embedder of the model before training; ``None``: only the trained model is shown.
    """
    # This check protects privacy: a picture of a private record would leave the trust boundary without any noise.
    if not store.public:
        return None
    split = config.evaluation.split
    held_out = split != "none" and store.count(split) > 0
    shown = store.within(split) if held_out else lambda first, end: np.ones(end - first, bool)
    indices = np.sort(store.smallest(shown, min(POOL, config.evaluation.records or POOL)))
    kind = f"{'held-out ' * held_out}records of {store.name}"
    embedders = [trained] if untrained is None else [untrained, trained]
    features = [embedder.features(indices) for embedder in embedders]
    captions = store.captions(indices) if store.kind == "image-text" else [[] for _ in indices]
    reads_text = trained.tokenizer is not None and any(captions)
    image_z: list[Tensor] = []
    for embedder, frozen in zip(embedders, features, strict=True) if reads_text else ():
        same = features_of(embedder.model) == "embed_images"  # heads of moments: their embeddings are its features
        image_z.append(frozen if same else embedder.images(indices))
    sections: list[Section] = []
    pictures = _visible(read(indices))
    if pictures is not None:
        sections.append(_samples(store, indices, pictures, captions, kind))
        if reads_text:
            sections.append(_retrieval(trained, image_z[-1], pictures, captions))
        sections.append(_neighbours(features, pictures, kind))
    charts: tuple[Confusion, ...] = ()
    if reads_text and held_out:
        charts = _confusions(embedders, image_z, store, indices, config)
    return Gallery(tuple(sections), embedding_maps(features, store, indices), charts)


def _samples(store: RecordSet, indices: np.ndarray, pictures: Tensor, captions: list[list[str]], kind: str) -> Section:
    count = min(6 if any(captions) else 12, len(indices))
    texts = [captions[i][0] if captions[i] else _labels(store, indices[i]) for i in range(count)]
    tiles = tuple(Tile(_png(pictures[i]), text) for i, text in enumerate(texts))
    return Section("Records", f"Some of the {len(indices):,} {kind} that are searched below.", "grid", (Strip("", tiles),))


def _labels(store: RecordSet, row: int) -> str:
    values = {name: int(column[row]) for name, column in store.labels.items()}
    names = store.label_names
    return ", ".join(names[name][value] for name, value in values.items() if 0 <= value < len(names.get(name, [])))


def _retrieval(embedder: Embedder, image_z: Tensor, pictures: Tensor, captions: list[list[str]]) -> Section:
    asked = [index for index, texts in enumerate(captions) if texts][:4]
    text_z = embedder.texts([captions[index][0] for index in asked])
    best = (normalize(text_z, dim=1) @ normalize(image_z, dim=1).T).topk(min(5, len(image_z)), dim=1).indices.tolist()
    strips = tuple(
        Strip(
            captions[index][0],
            tuple(Tile(_png(pictures[answer]), role="right" if answer == index else "plain") for answer in answers),
        )
        for index, answers in zip(asked, best, strict=True)
    )
    note = f"A caption, and the five nearest of {len(image_z):,} images. Framed: the image that the caption belongs to."
    return Section("Search by text", note, "strips", strips)


def _neighbours(features: list[Tensor], pictures: Tensor, kind: str) -> Section:
    """Shows the nearest neighbours of a few records: for each record a strip per model, that of the trained model last."""
    near = [_nearest(z) for z in features]
    strips = tuple(
        Strip("", (Tile(_png(pictures[i]), role="query"), *(Tile(_png(pictures[j])) for j in of_model[i])))
        for i in range(len(near[0]))
        for of_model in near
    )
    note = f"One record (framed) and its six nearest of {len(pictures):,} {kind}, by the cosine of frozen features."
    if len(features) > 1:
        return Section("Nearest neighbours before and after training", note, "pairs", strips)
    return Section("Nearest neighbours", note, "strips", strips)


def _nearest(features: Tensor) -> list[list[int]]:
    unit = normalize(features, dim=1)
    asked = min(4, len(unit))
    similarity = unit[:asked] @ unit.T
    similarity[range(asked), range(asked)] = -torch.inf
    return similarity.topk(min(6, len(unit) - 1), dim=1).indices.tolist()


def _confusions(
    embedders: list[Embedder], image_z: list[Tensor], store: RecordSet, indices: np.ndarray, config: Config
) -> tuple[Confusion, ...]:
    """Counts each model's confusions, for each label that zero-shot classification can predict."""
    charts = []
    for column in class_columns(store, config.evaluation):
        labels = torch.from_numpy(np.asarray(store.labels[column][indices], dtype=np.int64))
        names, labelled = store.label_names[column], labels >= 0
        if not labelled.any() or len(names) < 2:
            continue
        counts = []
        for embedder, z in zip(embedders, image_z, strict=True):
            class_z = class_embeddings(names, config.evaluation.templates, embedder.texts)
            counts.append(confusions(z[labelled], class_z, labels[labelled]).numpy())
        shown = most_frequent(labels.numpy(), len(names), SHOWN)
        cut = [_rows(table, shown) for table in counts]
        charts.append(Confusion(column, tuple(names[number] for number in shown), cut[-1], cut[0] if len(cut) > 1 else ()))
    return tuple(charts)


def _rows(counts: np.ndarray, shown: list[int]) -> Counts:
    """Selects the rows and columns of the given classes; a last column sums the columns of all other classes, if any."""
    rows = counts[np.ix_(shown, shown)]
    if len(shown) < len(counts):
        rows = np.column_stack([rows, counts[shown].sum(axis=1) - rows.sum(axis=1)])
    return tuple(tuple(row) for row in rows.tolist())


def _visible(images: Tensor) -> Tensor | None:
    """Returns images as bytes, ``(n, 3, H, W)`` or ``(n, 1, H, W)``; ``None`` if they have neither 1 nor 3 channels.

    Images of a user's own data set are normalised: each channel is scaled so that its least value in all images becomes 0, and
    its largest 255.
    """
    if images.shape[1] not in (1, 3):
        return None
    if images.dtype == torch.uint8:
        return images
    low, high = images.amin(dim=(0, 2, 3), keepdim=True), images.amax(dim=(0, 2, 3), keepdim=True)
    return ((images - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)


def _png(image: Tensor) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy()).save(out, format="PNG")
    return out.getvalue()
