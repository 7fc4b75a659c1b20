"""Search by text with a run's model, among public pictures. No picture of a private record is ever shown."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
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

    from dpfed.data.store.records import RecordStore
    from dpfed.encoder import Encoder

_POOL, _ANSWERS, _AT_ONCE = 2_000, 12, 100


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        pictures: the nearest first, as ``data:`` addresses.
        trouble: why there are none.
        searched: among how many.
    """

    pictures: Sequence[str] = ()
    trouble: str = ""
    searched: int = 0


class Retrieval:
    """Answers searches. Models and pictures are loaded when the first one comes, those of the last run are kept.

    Args:
        pictures: a store that is marked public; ``None``: the run's own records, where these are.

    Raises:
        UserError: if the store is not public.
    """

    def __init__(self, pictures: Path | None = None) -> None:
        self._pictures, self._lock = pictures, threading.Lock()
        self._kept: tuple[tuple[Path, int], tuple[Encoder, RecordStore, np.ndarray, Tensor]] | None = None
        if pictures is not None:
            from dpfed.data.store.records import RecordStore

            _require_public(RecordStore.open(pictures), str(pictures))

    def reads_text(self, run: Path) -> bool:
        """Whether a run's model has a text tower."""
        try:
            return ModelConfig.model_validate(describe(run / "model")["model"]).reads_text
        except (UserError, ValidationError):
            return False

    def find(self, run: Path, text: str) -> Found:
        """The pictures nearest to a text."""
        if not text.strip():
            return Found(trouble="Say what to look for.")
        with self._lock:
            try:
                encoder, store, indices, embedded = self._loaded(run)
                scores = embedded @ encoder.embed_text(text)[0].cpu()
            except UserError as error:
                return Found(trouble=str(error))
            except OSError as error:
                return Found(trouble=f"{error.filename} cannot be read: {error.strerror}.")
            best = scores.topk(min(_ANSWERS, len(indices))).indices.numpy()
            pictures = store.images(
                indices[best], encoder.size, encoder.preprocessing.resize, encoder.preprocessing.interpolation
            )
        return Found([uri(_png(picture), "image/png") for picture in pictures], searched=len(indices))

    def _loaded(self, run: Path) -> tuple[Encoder, RecordStore, np.ndarray, Tensor]:
        mark = (run, (run / "results.json").stat().st_mtime_ns)
        if self._kept is None or self._kept[0] != mark:
            import numpy as np
            import torch

            from dpfed.encoder import load

            store = self._store(run)
            encoder = load(run)
            held_out = next((split for split in ("validation", "test") if store.count(split)), "train")
            indices = np.sort(store.smallest(store.within(held_out), _POOL))
            how = encoder.preprocessing
            batches = [
                encoder.embed_images(store.images(part, encoder.size, how.resize, how.interpolation)).cpu()
                for part in np.split(indices, range(_AT_ONCE, len(indices), _AT_ONCE))
            ]
            self._kept = (mark, (encoder, store, indices, torch.cat(batches)))
        return self._kept[1]

    def _store(self, run: Path) -> RecordStore:
        from dpfed.artifacts.directory import RunDirectory
        from dpfed.data.store.records import RecordStore
        from dpfed.runs.records import records_of

        if self._pictures is not None:
            store, named = RecordStore.open(self._pictures), str(self._pictures)
        else:
            store, named = records_of(RunDirectory.open(run).config()), "this run's store"
        _require_public(store, named)
        return store


def _require_public(store: RecordStore, named: str) -> None:
    # Not a matter of taste: a picture of a private record would leave the trust boundary without any noise.
    if not store.public:
        raise UserError(
            f"{named} is not marked public, and pictures of private records are never shown: give `dpfed serve` a public store "
            "with --pictures STORE."
        )


def _png(image: Tensor) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).cpu().numpy()).save(out, format="PNG")
    return out.getvalue()
