"""Pictures of records in a report: only ever of public or generated records."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize

from dpfed.config import Config
from dpfed.errors import UserError
from dpfed.evaluation.features import ImagesFn, ReadImages, Tokenizer, embed_captions, embed_images, extract
from dpfed.files.reading import read_bytes, read_text

if TYPE_CHECKING:
    from dpfed.data.record_set import RecordSet

POOL = 2_000  # records among which neighbours and answers are looked for
INDEX = "gallery.json"


@dataclass(frozen=True)
class Tile:
    """One picture: PNG bytes, a text under it, and a role: "plain", "query" or "right" (framed)."""

    png: bytes
    text: str = ""
    role: str = "plain"


@dataclass(frozen=True)
class Strip:
    """A row of pictures that belong together, under a title (such as the caption that was searched for)."""

    title: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Section:
    """One idea shown in pictures; ``layout`` is "grid" or "strips"."""

    title: str
    note: str
    layout: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True)
class Gallery:
    """All pictures of a report."""

    sections: tuple[Section, ...]

    def write(self, folder: str | Path) -> None:
        """Writes PNG files and an index into a folder, which is made."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        count = 0
        index = []
        for section in self.sections:
            strips = []
            for strip in section.strips:
                tiles = []
                for tile in strip.tiles:
                    name = f"{count:03d}.png"
                    count += 1
                    (folder / name).write_bytes(tile.png)
                    tiles.append({"file": name, "text": tile.text, "role": tile.role})
                strips.append({"title": strip.title, "tiles": tiles})
            index.append({"title": section.title, "note": section.note, "layout": section.layout, "strips": strips})
        (folder / INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: str | Path) -> Gallery:
        """Reads what `write` wrote.

        Raises:
            UserError: for a missing or damaged file.
        """
        folder = Path(folder)
        try:
            index = json.loads(read_text(folder / INDEX))
            return cls(tuple(_section(item, folder) for item in index))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"the gallery {folder} is damaged ({error}): delete it. [report-gallery-damaged]") from error


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


def _tile(item: dict, folder: Path) -> Tile:
    # Path(...).name: an index must not lead out of its folder.
    return Tile(_kept(folder / Path(item["file"]).name), str(item["text"]), str(item["role"]))


def _kept(file: Path) -> bytes:
    """A picture's bytes, which a browser can show."""
    png = read_bytes(file)
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            image.load()
    except Exception as error:  # PIL's readers raise almost anything on damaged bytes
        raise ValueError(f"{file.name}: {error or type(error).__name__}") from error
    return png


def _section(item: dict, folder: Path) -> Section:
    strips = tuple(
        Strip(str(strip["title"]), tuple(_tile(tile, folder) for tile in strip["tiles"])) for strip in item["strips"]
    )
    return Section(str(item["title"]), str(item["note"]), str(item["layout"]), strips)
