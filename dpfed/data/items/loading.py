"""Reads items and makes their views in the worker processes of a torch `DataLoader`, which persist from request to request.

Before each view is made, every random generator that a transform may use is seeded, by a seed that is drawn from the record's
own key and the step. A view is therefore a function of its record and its seed, whatever other records are processed with it,
and in whichever process.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from dpfed.data.items.item import BrokenItem, Parts, described, is_finite
from dpfed.data.processes import cores, loader_processes
from dpfed.errors import UserError

Transform = Callable[[Any], Any]
_CHUNK = 16  # records that are sent together from one process to another


@dataclass(frozen=True)
class Request:
    """A request for the views of n records.

    Attributes:
        rows: Rows of the records in the data set, ``(n,)``.
        seeds: Seed of each view, ``(n, V)`` uint64, or ``(n, 1)`` for a transform that makes all views at once; ``None``: the
            plain images are requested.
    """

    rows: np.ndarray
    seeds: np.ndarray | None = None

    def same_as(self, other: Request) -> bool:
        """Returns whether both requests have the same rows and seeds."""
        if (self.seeds is None) != (other.seeds is None) or not np.array_equal(self.rows, other.rows):
            return False
        return self.seeds is None or other.seeds is None or np.array_equal(self.seeds, other.seeds)

    def chunks(self, size: int) -> Iterator[Request]:
        """Splits the request into requests of at most `size` records."""
        for first in range(0, len(self.rows), size):
            seeds = None if self.seeds is None else self.seeds[first : first + size]
            yield Request(self.rows[first : first + size], seeds)


@dataclass(frozen=True)
class Recipe:
    """The steps that turn an item into input of the model.

    Attributes:
        items: Data set.
        parts: Locations of the parts of an item.
        transform: Function that makes a random view of an image, or a list of views.
        plain: Function that makes the image for evaluation, without augmentation.
    """

    items: Sequence[Any]
    parts: Parts
    transform: Transform
    plain: Transform

    def views(self, row: int, seeds: np.ndarray | None) -> list[Tensor]:
        """Makes the V views of one record, each ``(C, H, W)`` float32.

        Args:
            row: Row of the record in the data set.
            seeds: Seed of each view, ``(V,)`` uint64, or one seed for a transform that makes all views at once; ``None``: the
                one view is the plain image.

        Raises:
            BrokenItem: If the item has no image, there are no views, or the views are not tensors of one shape with finite
                floats. Errors of the data set and of the transforms are raised as they are.
        """
        image = self.parts.image_of(self.items[row])
        if seeds is None:
            return [tensor_of(self.plain(image), "Views.plain")]
        made = []
        for seed in seeds.tolist():
            seed_generators(seed)
            made.append(self.transform(image))
        made = list(made[0]) if len(made) == 1 and isinstance(made[0], list | tuple) else made
        if not made:
            raise BrokenItem("the transform gave no view")
        tensors = [tensor_of(view, "the transform") for view in made]
        if len({view.shape for view in tensors}) != 1:
            shapes = ", ".join(str(tuple(view.shape)) for view in tensors)
            raise BrokenItem(f"its views have different shapes: {shapes}")
        return tensors


@dataclass(frozen=True)
class Failure:
    """An error that an item caused, in a form that one process can send to another.

    Attributes:
        row: Row of the item in the data set.
        said: Description of the error, for the message.
    """

    row: int
    said: str


class _Reads(Dataset[Any]):
    """A data set of torch that answers requests inside a process of the loader."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def __getitem__(self, request: Request) -> Any:
        return answer(self._recipe, request)


def answer(recipe: Recipe, request: Request) -> Tensor | Failure:
    """Makes the views that are requested.

    Args:
        recipe: Steps that turn an item into input of the model.
        request: Request for the views of n records.

    Returns:
        The views, ``(n, V, C, H, W)`` float32, or the error of the first item that failed.
    """
    made: list[Tensor] = []
    count = 1
    for number, row in enumerate(request.rows.tolist()):
        try:
            views = recipe.views(row, None if request.seeds is None else request.seeds[number])
            if made and (len(views), views[0].shape) != (count, made[0].shape):
                those = f"those of other records {(count, *made[0].shape)}"
                raise BrokenItem(f"its views have the shape {(len(views), *views[0].shape)} (V, C, H, W), and {those}")
            made += views
            count = len(views)
        except BrokenItem as error:
            return Failure(row, str(error))
        except Exception as error:  # whatever a foreign transform or data set raises
            return Failure(row, f"{type(error).__name__}: {error}")
    return default_collate(made).unflatten(0, (-1, count))  # in a loader's process, this collates into shared memory


class _Queue(Sampler[Request]):
    """A sampler of torch that gives requests to the loader's processes."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)

    def __len__(self) -> int:
        return len(self.requests)


class ItemLoader:
    """Answers requests for views. Requests can be announced: processes then make the views before they are needed.

    Args:
        recipe: Steps that turn an item into input of the model.
        workers: Number of processes; 0: this process does everything; ``None``: one for each core.
        chunk: Largest number of records that are sent together from one process to another.
    """

    def __init__(self, recipe: Recipe, workers: int | None = None, chunk: int = _CHUNK) -> None:
        self._chunk = self._size = chunk
        self._recipe, self._workers = recipe, loader_processes(cores() if workers is None else workers, recipe)
        self._queue = _Queue()
        self._loader: DataLoader[Any] | None = None
        self._coming: Iterator[Any] = iter(())
        self._expected: deque[Request] = deque()

    def prefetch(self, requests: Sequence[Request]) -> None:
        """Announces the next requests, in order. If they are announced already, the work that has begun on them goes on."""
        if self._workers == 0 or _is_coming(requests, self._expected):
            return
        self._expected = deque(requests)
        # A request is sent whole, which saves a copy at its end, unless that leaves processes without work.
        most = max((len(request.rows) for request in requests), default=1)
        alone = len(requests) < self._workers
        self._size = max(1, min(self._chunk, -(-most // self._workers) if alone else most))
        self._queue.requests = [chunk for request in requests for chunk in request.chunks(self._size)]
        self._coming = iter(self._started())

    def __call__(self, request: Request) -> Tensor:
        """Returns the views of a request, ``(n, V, C, H, W)`` float32.

        Raises:
            UserError: If an item cannot be read or a transform fails (the message gives the item's position in the data set),
                views have different shapes, or a process dies.
        """
        if self._workers == 0:
            with generators_kept():
                return _unfailed(answer(self._recipe, request))
        if not self._expected or not request.same_as(self._expected[0]):
            self.prefetch([request])
        self._expected.popleft()
        try:
            parts = [_unfailed(next(self._coming)) for _ in request.chunks(self._size)]
        except RuntimeError as error:  # a process of the loader died
            self.close()
            raise UserError(
                f"a process that reads items ended ({str(error).splitlines()[0]}). Start again, with fewer processes "
                "(Records(workers=...)) if memory is short. [items-process]"
            ) from error
        except UserError:
            self.close()
            raise
        if len({part.shape[1:] for part in parts}) > 1:
            shapes = " and ".join(sorted({str(tuple(part.shape[1:])) for part in parts}))
            raise UserError(
                f"the views of records differ in shape: {shapes} (V, C, H, W). Make the same number of views of every record, "
                "all of one shape. [items-sizes]"
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def close(self) -> None:
        """Ends the processes; the next request starts new ones."""
        self._expected.clear()
        self._coming, self._loader = iter(()), None

    def _started(self) -> DataLoader[Any]:
        if self._loader is None:
            self._loader = DataLoader(
                _Reads(self._recipe),
                batch_size=None,
                sampler=self._queue,
                num_workers=self._workers,
                persistent_workers=True,
                prefetch_factor=2,
                collate_fn=_as_it_is,
                generator=torch.Generator(),  # the global generator of this process must not move: dropout draws from it
            )
        return self._loader


def _is_coming(requests: Sequence[Request], expected: deque[Request]) -> bool:
    """Returns whether the given requests are the next ones among the expected requests."""
    return len(requests) <= len(expected) and all(map(Request.same_as, requests, expected))


def _as_it_is(value: Any) -> Any:
    return value


def _unfailed(views: Tensor | Failure) -> Tensor:
    if isinstance(views, Failure):
        raise UserError(f"item {views.row:,} of the records cannot be used: {views.said}. [items-broken]")
    return views


def tensor_of(view: Any, what: str) -> Tensor:
    """Checks a view and returns it as a float32 tensor.

    Args:
        view: Result of a transform.
        what: Name of the transform, for messages.

    Raises:
        BrokenItem: If the view is not a tensor ``(C, H, W)`` of finite floats.
    """
    if not isinstance(view, Tensor) or not view.is_floating_point() or view.dim() != 3:
        end = "; let it end with v2.ToImage() and v2.ToDtype(torch.float32, scale=True)"
        raise BrokenItem(f"{what} gave {described(view)}, expected a tensor (C, H, W) of floats{end}")
    if not is_finite(view):
        raise BrokenItem(f"{what} gave numbers that are not finite")
    return view.detach().float().as_subclass(Tensor)


def seed_generators(seed: int) -> None:
    """Seeds every global generator that a transform may use: those of torch, numpy and Python."""
    torch.default_generator.manual_seed(seed & (2**63 - 1))
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 foreign transforms use it
    random.seed(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restores the state of the global generators of torch, numpy and Python at the end of the ``with`` block."""
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
        random.setstate(kept[2])
