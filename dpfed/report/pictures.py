"""Which pictures a report shows: of public or generated records, chosen by the model's features."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize

from dpfed.config import Config
from dpfed.evaluation.features import ImagesFn, ReadImages, Tokenizer, embed_captions, embed_images, extract
from dpfed.report.gallery import Gallery, Section, Strip, Tile

if TYPE_CHECKING:
    from dpfed.data.record_set import RecordSet

POOL = 2_000  # records among which neighbours and answers are looked for


def build_gallery(
    model: nn.Module,
    store: RecordSet,
    read: ReadImages,
    config: Config,
    images_fn: ImagesFn,
    tokenizer: Tokenizer | None,
    device: torch.device | str,
) -> Gallery | None:
    """Pictures of held-out records as the model sees them; None unless the store is public.

    Args:
        model: with ``features``, and for captions ``embed_images`` and ``embed_text``.
        store: the records.
        read: their images, indices ``(n,)`` -> uint8 ``(n, 3, size, size)``.
        config: of the run; ``evaluation.split`` chooses the records, or all splits where that one is empty.
        images_fn: normally ``ImageViews.plain``.
        tokenizer: of the text tower, None for an image model.
        device: where the model is.
    """
    # Not a matter of taste: a picture of a private record would leave the trust boundary without any noise.
    if not store.public:
        return None
    split = config.evaluation.split
    held_out = split != "none" and store.count(split) > 0
    shown = store.within(split) if held_out else lambda first, end: np.ones(end - first, bool)
    indices = np.sort(store.smallest(shown, min(POOL, config.evaluation.records or POOL)))
    kind = f"{'held-out ' * held_out}records of {store.name}"
    pictures = read(indices)
    features = extract(model, read, indices, images_fn, device)
    captions = store.captions(indices) if store.kind == "image-text" else [[] for _ in indices]
    sections = [_samples(store, indices, pictures, captions, kind)]
    if tokenizer is not None and any(captions):
        image_z = embed_images(model, read, indices, images_fn, device)
        sections.append(_retrieval(model, image_z, pictures, captions, tokenizer, device))
    sections.append(_neighbours(features, pictures, kind))
    return Gallery(tuple(sections))


def _samples(store: RecordSet, indices: np.ndarray, pictures: Tensor, captions: list[list[str]], kind: str) -> Section:
    count = min(6 if any(captions) else 12, len(indices))
    texts = [captions[i][0] if captions[i] else _labels(store, indices[i]) for i in range(count)]
    tiles = tuple(Tile(_png(pictures[i]), text) for i, text in enumerate(texts))
    return Section("Records", f"Some of the {len(indices):,} {kind} that are searched below.", "grid", (Strip("", tiles),))


def _labels(store: RecordSet, row: int) -> str:
    values = {name: int(column[row]) for name, column in store.labels.items()}
    names = store.label_names
    return ", ".join(names[name][value] for name, value in values.items() if 0 <= value < len(names.get(name, [])))


def _retrieval(
    model: nn.Module,
    image_z: Tensor,
    pictures: Tensor,
    captions: list[list[str]],
    tokenizer: Tokenizer,
    device: torch.device | str,
) -> Section:
    asked = [index for index, texts in enumerate(captions) if texts][:4]
    text_z = embed_captions(model, [captions[index][0] for index in asked], tokenizer, device)
    best = (normalize(text_z, dim=1) @ normalize(image_z, dim=1).T).topk(min(5, len(image_z)), dim=1).indices.tolist()
    strips = tuple(
        Strip(
            captions[index][0],
            tuple(Tile(_png(pictures[found]), role="right" if found == index else "plain") for found in answers),
        )
        for index, answers in zip(asked, best, strict=True)
    )
    note = f"A caption, and the five nearest of {len(image_z):,} images. Framed: the image that the caption belongs to."
    return Section("Search by text", note, "strips", strips)


def _neighbours(features: Tensor, pictures: Tensor, kind: str) -> Section:
    unit = normalize(features, dim=1)
    asked = min(4, len(unit))
    similarity = unit[:asked] @ unit.T
    similarity[range(asked), range(asked)] = -torch.inf
    near = similarity.topk(min(6, len(unit) - 1), dim=1).indices.tolist()
    strips = tuple(
        Strip("", (Tile(_png(pictures[i]), role="query"), *(Tile(_png(pictures[j])) for j in found)))
        for i, found in enumerate(near)
    )
    note = f"One record (left) and its six nearest of {len(unit):,} {kind}, by the cosine of frozen features."
    return Section("Nearest neighbours", note, "strips", strips)


def _png(image: Tensor) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).cpu().numpy()).save(out, format="PNG")
    return out.getvalue()
