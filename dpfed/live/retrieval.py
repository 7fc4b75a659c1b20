"""Searches public pictures by text, with a run's model, for the live page and for `dpfed search`."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from dpfed.config import ModelConfig
from dpfed.errors import UserError
from dpfed.models.description import describe
from dpfed.report.style import uri

if TYPE_CHECKING:  # torch takes seconds to import, and most pages are never searched
    import numpy as np
    from torch import Tensor

    from dpfed.data.named_pictures import NamedPictures
    from dpfed.data.store.records import RecordStore
    from dpfed.encoder import Encoder

_POOL, _ANSWERS = 2_000, 12  # most pictures that the page searches, and that it shows


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        pictures: Pictures found, the nearest first, as ``data:`` addresses.
        trouble: Reason why there are no pictures; empty: the search succeeded.
        searched: Number of pictures that were searched.
    """

    pictures: Sequence[str] = ()
    trouble: str = ""
    searched: int = 0


@dataclass(frozen=True)
class SearchIndex:
    """Embeddings of pictures in the space that a model shares with text.

    Attributes:
        encoder: Encoder of the run.
        pictures: Pictures that are searched.
        vectors: L2-normalised embeddings of the n pictures, shape ``(n, D)``.
    """

    encoder: Encoder
    pictures: NamedPictures
    vectors: Tensor

    @classmethod
    def of(cls, encoder: Encoder, pictures: NamedPictures, advance: Callable[[int], None] = lambda done: None) -> SearchIndex:
        """Embeds pictures, and calls `advance` with the number of pictures done."""
        import torch

        from dpfed.features.parquet import embedded

        batches = embedded(pictures, encoder.embed_images, encoder.size, encoder.preprocessing, advance)
        return cls(encoder, pictures, torch.cat([vectors for _, vectors in batches]))

    def nearest(self, text: str, count: int) -> tuple[np.ndarray, list[float]]:
        """Returns indices and cosines of the `count` pictures nearest to a text (of all, if there are fewer), nearest first."""
        scores = self.vectors @ self.encoder.embed_text(text)[0].cpu()
        best = scores.topk(min(count, len(self.pictures)))
        return best.indices.numpy(), best.values.tolist()


class Retrieval:
    """Search by text for the live page.

    It loads a run's model and pictures at the first search, and keeps them until another run is searched, or the run's results
    change.

    Args:
        pictures: Record store that is marked public; ``None``: the run's own records, if they are public.

    Raises:
        UserError: If the store cannot be opened or is not public.
    """

    def __init__(self, pictures: Path | None = None) -> None:
        self._pictures, self._lock = pictures, threading.Lock()
        self._kept: tuple[tuple[Path, int], SearchIndex] | None = None
        if pictures is not None:
            public_store(pictures)

    def find(self, run: Path, text: str) -> Found:
        """Returns the pictures nearest to a text, or the reason why there are none."""
        if not text.strip():
            return Found(trouble="Enter a text to search for.")
        with self._lock:
            try:
                among = self._loaded(run)
                numbers, _ = among.nearest(text, _ANSWERS)
                pictures = among.pictures.squares(numbers, among.encoder.size, among.encoder.preprocessing)
            except UserError as error:
                return Found(trouble=str(error))
            except OSError as error:
                return Found(trouble=f"{error.filename or run} cannot be read: {error.strerror or error}.")
        return Found([uri(_png(picture), "image/png") for picture in pictures], searched=len(among.pictures))

    def _loaded(self, run: Path) -> SearchIndex:
        mark = (run, (run / "results.json").stat().st_mtime_ns)
        if self._kept is None or self._kept[0] != mark:
            import numpy as np

            from dpfed.data.named_pictures import StoredPictures
            from dpfed.encoder import load

            store = own_store(run) if self._pictures is None else public_store(self._pictures)
            held_out = next((split for split in ("validation", "test") if store.count(split)), "train")
            rows = np.sort(store.smallest(store.within(held_out), _POOL))
            self._kept = (mark, SearchIndex.of(load(run), StoredPictures(store, rows)))
        return self._kept[1]


def reads_text(run: Path) -> bool:
    """Returns whether a run's model has a text tower; False if the model's description cannot be read."""
    try:
        return ModelConfig.model_validate(describe(run / "model")["model"]).reads_text
    except (UserError, ValidationError):
        return False


def public_store(path: Path) -> RecordStore:
    """Opens a record store whose pictures may be shown.

    Raises:
        UserError: If the store cannot be opened or is not marked public.
    """
    from dpfed.data.store.records import RecordStore

    return _public(RecordStore.open(path), str(path))


def own_store(run: Path) -> RecordStore:
    """Opens the record store of a run, if its pictures may be shown.

    Raises:
        UserError: If there is no run, or its store cannot be opened or is not marked public.
    """
    from dpfed.artifacts.directory import RunDirectory
    from dpfed.runs.records import records_of

    return _public(records_of(RunDirectory.open(run).config()), "this run's store")


def _public(store: RecordStore, named: str) -> RecordStore:
    # Not a matter of taste: a picture of a private record would leave the trust boundary without any noise.
    if not store.public:
        raise UserError(
            f"{named} is not marked public, and pictures of private records are never shown: give a public store with "
            "--pictures STORE. [search-store-private]"
        )
    return store


def _png(image: Tensor) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).cpu().numpy()).save(out, format="PNG")
    return out.getvalue()
