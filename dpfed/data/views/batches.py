"""Makes the views of the records with given indices in a store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from dpfed.data.record_set import RecordSet
from dpfed.data.transfer import to_device
from dpfed.data.views.images import ImageViews
from dpfed.data.views.texts import TextViews
from dpfed.objectives.classes import LABEL
from dpfed.privacy.randomness import Randomness

_AHEAD = 2  # microbatches whose images are read ahead


class ReadAhead:
    """Reads images in a thread before they are used. A call returns the same images as a call of `read`.

    The thread ends when this object is deleted. An error in the thread is raised in the call that needs the images.

    Args:
        read: Function from indices ``(n,)`` of records to their images.
    """

    def __init__(self, read: Callable[[np.ndarray], Tensor]) -> None:
        self._read = read
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")  # starts with the first task
        self._later: deque[np.ndarray] = deque()
        self._begun: deque[tuple[np.ndarray, Future[Tensor]]] = deque()

    def prefetch(self, batches: Iterable[np.ndarray]) -> None:
        """Announces the indices of the next calls, in order. Images of these indices that are being read already are kept."""
        self._later = deque(batches)
        begun, self._begun = self._begun, deque()
        for indices, images in begun:
            if self._later and np.array_equal(indices, self._later[0]):
                self._begun.append((self._later.popleft(), images))
            else:
                images.cancel()
        self._begin()

    def __call__(self, indices: np.ndarray) -> Tensor:
        """Returns the images of the records with the given indices. Images that were not announced are read at once."""
        if not self._begun or not np.array_equal(indices, self._begun[0][0]):
            return self._read(indices)
        _, images = self._begun.popleft()
        self._begin()
        return images.result()

    def _begin(self) -> None:
        while self._later and len(self._begun) < _AHEAD:
            indices = self._later.popleft()
            self._begun.append((indices, self._thread.submit(self._read, indices)))


class ViewMaker:
    """Makes the random views of records. A record's views depend only on this record and on what is drawn for it.

    Args:
        store: Records.
        read: Function from indices ``(n,)`` of records to their images, ``(n, 3, size, size)`` uint8.
        views: Random views of images.
        count: Number of views of each image and, if there are random views of texts, of each text: 2 + N_a for records without
            text, otherwise 1 + N_a. N_a: the number of augmented views (`ContrastOptions.augmentations`).
        tokenizer: Tokenizer of models that read text; ``None`` for image models.
        text_views: Random views of the captions; ``None``, or views that change nothing, give each record one text.

    Attributes:
        classes: Classes of the records, ``(N,)`` int64, for a loss that reads them; -1 for a record without a class.
    """

    classes: np.ndarray | None = None

    def __init__(
        self,
        store: RecordSet,
        read: Callable[[np.ndarray], Tensor],
        views: ImageViews,
        count: int,
        tokenizer: Callable[[list[str]], Tensor] | None = None,
        text_views: TextViews | None = None,
    ) -> None:
        self._store = store
        self._read = ReadAhead(read)
        self._views = views
        self._count = count
        self._tokenizer, self._text_views = tokenizer, text_views

    def __call__(self, indices: np.ndarray, randomness: Randomness, step: int, device: torch.device) -> dict[str, Tensor]:
        """Makes the views of the given records.

        Args:
            indices: Indices of records in the store, ``(n,)``.
            randomness: Source of the views' parameters, and of the choice of a caption. All text views of a record are views of
                one caption.
            step: Training step.
            device: Device on which the views are made.

        Returns:
            ``{"image": (n, V, 3, H, W) float32, "text": (n, V, L) int64}``. V is `count`, H and W are the height and width of a
            view, and L is the number of tokens of a text. If no `text_views` change anything, ``"text"`` is ``(n, 1, L)``.
            There is no ``"text"`` without a tokenizer. If `classes` is set, there is also ``"label": (n, 1, 1) int64``.
        """
        result = {"image": self._images(indices, randomness, step, device)}
        if self.classes is not None:
            result[LABEL] = to_device(torch.from_numpy(self.classes[indices].astype(np.int64))[:, None, None], device)
        if self._tokenizer is not None:
            result["text"] = to_device(self._texts(self._tokenizer, indices, randomness, step), device)
        return result

    def prefetch(self, batches: Iterable[np.ndarray], randomness: Randomness, step: int, device: torch.device) -> None:
        """Announces the indices of the next calls, in order, so that their images can be read meanwhile.

        Raw images are mapped into memory. If the CPU processes them, reading ahead would gain nothing, and is omitted.

        Args:
            batches: Indices of each call, ``(n,)``.
            randomness: Randomness of these calls.
            step: Training step.
            device: Device on which the views will be made.
        """
        if getattr(self._store, "size", None) is None or device.type != "cpu":
            self._read.prefetch(batches)

    def _images(self, indices: np.ndarray, randomness: Randomness, step: int, device: torch.device) -> Tensor:
        """Returns the image views, ``(n, V, 3, H, W)``."""
        keys, columns = self._store.keys[indices], self._views.columns * self._count
        drawn = randomness.per_record("views", step, keys, columns).astype(np.float32)
        uniforms = torch.from_numpy(drawn).view(len(indices), self._count, self._views.columns)
        return self._views(to_device(self._read(indices), device), to_device(uniforms, device))

    def _texts(
        self, tokenizer: Callable[[list[str]], Tensor], indices: np.ndarray, randomness: Randomness, step: int
    ) -> Tensor:
        """Returns the tokens of the records' text views, ``(n, W, L)``; W is V, or 1 if the text views change nothing."""
        keys = self._store.keys[indices]
        choice = randomness.per_record("caption", step, keys, 1)[:, 0]
        captions = [given[int(u * len(given))] for u, given in zip(choice, self._store.captions(indices), strict=True)]
        if self._text_views is None or not self._text_views.active:
            return tokenizer(captions)[:, None]
        uniforms = randomness.per_record("text", step, keys, self._count)
        texts = self._text_views(captions, (uniforms * 2.0**53).astype(np.uint64))  # all of the 53 bits that were drawn
        return tokenizer([text for views in texts for text in views]).unflatten(0, (len(indices), self._count))
