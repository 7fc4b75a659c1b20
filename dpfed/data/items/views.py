"""Random views of the user's own: any callable as transform, of records of any data set."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfed.data.items.item import described
from dpfed.data.items.loading import ItemLoader, Recipe, Request, Transform, answer, generators_kept
from dpfed.data.items.records import Records
from dpfed.data.options import ViewsConfig
from dpfed.data.record_set import RecordSet
from dpfed.data.transfer import to_device
from dpfed.data.views.batches import ViewMaker
from dpfed.data.views.images import ImageViews
from dpfed.data.views.record_views import RecordViews, Tokenizer
from dpfed.errors import UserError
from dpfed.privacy.randomness import Randomness

Shape = tuple[int, int, int]


class Views:
    """Random views of an image.

    Args:
        transform: a callable that makes a view out of an image as the data set gives it (a PIL image, or a tensor
            ``(C, H, W)``): a float tensor ``(C, H, W)``, the same shape for every image. It may draw from the generators of
            torch, numpy and `random`, which are seeded for each view. It may also give a list of all views at once.
        count: V, views of each image; of a transform that gives a list: as many as it gives. Default: 2, and 1 for models that
            read text.
        plain: makes the image for evaluation, without randomness. Default: scaled and cropped to the size of a view, as floats
            in [0, 1], with the normalisation that stands in `transform`, if that is a `Compose`.

    Raises:
        UserError: if these are not callables, or the count is below 1.
    """

    def __init__(self, transform: Transform, count: int | None = None, plain: Transform | None = None) -> None:
        for name, given in (("transform", transform), ("plain", plain)):
            if not callable(given) and not (given is None and name == "plain"):
                raise UserError(f"Views: expected a callable as {name}, got {described(given)}. [views-callable]")
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise UserError(f"Views: expected count = 1 or more views of an image, got {count!r}. [views-count]")
        self.transform, self.count, self.plain = transform, count, plain

    def __repr__(self) -> str:
        return f"Views({self.transform!r}, count={self.count})"


def simclr_transform(size: int) -> Transform:
    """The usual random views of colour images: crops, flips, colours, grey.

    Args:
        size: side of a view, pixels.
    """
    from torchvision.transforms import v2  # takes a second, and most runs make no such views

    return v2.Compose(
        [
            v2.ToImage(),
            v2.RGB(),
            v2.RandomResizedCrop(size, (0.2, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )


def plain_like(transform: Transform, shape: Shape) -> Transform:
    """What makes an image for evaluation, of the shape that a transform makes, with the normalisation that stands in it.

    Args:
        transform: of training.
        shape: (C, H, W) of a view.
    """
    from torchvision.transforms import v2

    channels, height, width = shape
    steps = list(getattr(transform, "transforms", []))
    normalise = [step for step in steps if type(step).__name__ == "Normalize"]
    colours = [v2.RGB()] if any(isinstance(step, v2.RGB) for step in steps) else []
    return v2.Compose(
        [
            _Colours(channels),
            *colours,
            v2.ToDtype(torch.float32, scale=True),
            v2.Resize(min(height, width), antialias=True),
            v2.CenterCrop((height, width)),
            *normalise,
        ]
    )


class _Colours:
    """An image as a tensor with as many channels as a view has."""

    def __init__(self, channels: int) -> None:
        self._mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels)

    def __call__(self, image: Any) -> Tensor:
        from torchvision.transforms import v2

        if not isinstance(image, Tensor) and self._mode is not None and image.mode not in ("I;16", "I", "F"):
            image = image.convert(self._mode)
        found = v2.functional.to_image(image)
        return found.to(torch.uint16) if not isinstance(image, Tensor) and image.mode == "I;16" else found


class _AsTheyAre(ImageViews):
    """Takes the place of `ImageViews` where images come as the model reads them."""

    def __init__(self) -> None:
        super().__init__(ViewsConfig())

    def plain(self, images: Tensor) -> Tensor:
        """The same."""
        return images


@dataclass(frozen=True, kw_only=True)
class ItemViews(RecordViews):
    """How the records of a data set become what a model reads. `Views.plain` prepares images, and nothing else does.

    Attributes:
        records: of which views are made.
        loader: reads them.
        shape: (C, H, W) of a view.
        draws: seeds of a record: as many as views, or one for a transform that makes all of them.
    """

    records: Records
    loader: ItemLoader
    shape: Shape
    draws: int

    @classmethod
    def of(cls, records: Records, views: Views, count: int, tokenizer: Tokenizer | None = None) -> ItemViews:
        """Tries the transform on a few records, and gets ready to make views of all.

        Args:
            records: opened or not.
            views: of the user.
            count: V, where `views` does not say.
            tokenizer: of models that read text.

        Raises:
            UserError: if the transform fails, gives something else than views, or does not give the same for the same seeds.
        """
        count = views.count or count
        trial = Recipe(records.items, records.parts, views.transform, _unchanged)
        rows = np.arange(min(len(records), _TRIED))
        seeds = np.arange(1, 1 + len(rows) * count, dtype=np.uint64).reshape(len(rows), count)
        with generators_kept():
            made, at_once = _tried(trial, rows, seeds)
            _refuse_unsteady(trial, rows, seeds[:, :1] if at_once else seeds, made)
        if at_once and views.count is not None and made.shape[1] != views.count:
            raise UserError(f"the transform gives {made.shape[1]} views at once, and count is {views.count}. [views-at-once]")
        shape = (int(made.shape[2]), int(made.shape[3]), int(made.shape[4]))
        recipe = Recipe(records.items, records.parts, views.transform, views.plain or plain_like(views.transform, shape))
        plain = _plain(recipe, rows)
        if plain.shape[2:] != made.shape[2:]:
            raise UserError(
                f"views are {shape}, and the plain images for evaluation {tuple(plain.shape[2:])}: give a transform that makes "
                "the same shape as Views(plain=...). [views-plain]"
            )
        chunk = max(1, min(_MOST_TOGETHER, _TOGETHER // (4 * made[0].numel())))
        loader = ItemLoader(recipe, records.workers, chunk)
        draws = 1 if at_once else count
        return cls(
            images=_AsTheyAre(),
            size=shape[1],
            count=int(made.shape[1]),
            tokenizer=tokenizer,
            records=records,
            loader=loader,
            shape=shape,
            draws=draws,
        )

    def read(self, store: RecordSet, indices: np.ndarray) -> Tensor:
        """Images for evaluation: float32 ``(n, C, H, W)``.

        Args:
            store: the records.
            indices: ``(n,)`` of them.
        """
        return self.loader(Request(np.asarray(indices)))[:, 0]

    def maker(self, store: RecordSet, count: int | None = None) -> ViewMaker:
        """Makes the views of training."""
        return ItemMaker(self)


class ItemMaker(ViewMaker):
    """Makes the random views of items; each record's views depend on that record and its own draws only.

    Args:
        views: how.
    """

    def __init__(self, views: ItemViews) -> None:
        read = functools.partial(views.read, views.records)
        super().__init__(views.records, read, views.images, views.count, views.tokenizer, views.texts)
        self._items = views

    def prefetch(self, batches: Iterable[np.ndarray], randomness: Randomness, step: int, device: torch.device) -> None:
        """See `ViewMaker.prefetch`."""
        self._items.loader.prefetch([self._request(indices, randomness, step) for indices in batches if len(indices)])

    def _images(self, indices: np.ndarray, randomness: Randomness, step: int, device: torch.device) -> Tensor:
        if len(indices) == 0:
            return torch.zeros(0, self._items.count, *self._items.shape, device=device)
        made = self._items.loader(self._request(indices, randomness, step))
        if made.shape[1:] != (self._items.count, *self._items.shape):
            raise UserError(
                f"the views of some records are {tuple(made.shape[1:])} (V, C, H, W), and those of the first were "
                f"{(self._items.count, *self._items.shape)}: make them all one size. [views-sizes]"
            )
        return to_device(made, device)

    def _request(self, indices: np.ndarray, randomness: Randomness, step: int) -> Request:
        keys, draws = self._store.keys[indices], self._items.draws
        words = [randomness.words("own views", step, keys, number) for number in range(-(-draws // 2))]
        return Request(np.asarray(indices), np.concatenate(words, axis=1)[:, :draws])


_TRIED = 16
_TOGETHER, _MOST_TOGETHER = 64 << 20, 256  # bytes and records that travel together between two processes


def _unchanged(image: Any) -> Any:
    return image


def _tried(recipe: Recipe, rows: np.ndarray, seeds: np.ndarray) -> tuple[Tensor, bool]:
    """``(n, V, C, H, W)``, and whether the transform makes all views of an image at once."""
    with generators_kept():
        first = recipe.parts.image_of(_item(recipe, int(rows[0])))
        try:
            found = recipe.transform(first)
        except Exception as error:
            raise UserError(
                f"the transform failed on an image ({described(first)}): {type(error).__name__}: {error}. [views-fail]"
            ) from error
    at_once = isinstance(found, list | tuple)
    return _made(recipe, rows, seeds[:, :1] if at_once else seeds), at_once


def _item(recipe: Recipe, row: int) -> Any:
    try:
        return recipe.items[row]
    except Exception as error:
        raise UserError(f"item {row} of the records cannot be read: {type(error).__name__}: {error}. [items-unread]") from error


def _made(recipe: Recipe, rows: np.ndarray, seeds: np.ndarray | None) -> Tensor:
    found = answer(recipe, Request(rows, seeds))
    if not isinstance(found, Tensor):
        raise UserError(f"the views of item {found.row:,} cannot be made: {found.said}. [views-broken]")
    return found


def _plain(recipe: Recipe, rows: np.ndarray) -> Tensor:
    with generators_kept():
        found = _made(recipe, rows, None)
        again = _made(recipe, rows[::-1].copy(), None).flip(0)
    if not torch.equal(found, again):
        raise UserError(
            "Views.plain gives something else the second time: it makes the images for evaluation, and must not be random. "
            "[views-plain-random]"
        )
    return found


def _refuse_unsteady(recipe: Recipe, rows: np.ndarray, seeds: np.ndarray, made: Tensor) -> None:
    """Refuses a transform whose views are not a function of the image and of the generators' seeds.

    Raises:
        UserError: saying which generators there are.
    """
    _made(recipe, rows[:1], seeds[:1, :1])  # one call more, for a counter whose turns are as many as the calls of a trial
    again = _made(recipe, rows, seeds)
    others = _made(recipe, rows[::-1].copy(), seeds[::-1].copy()).flip(0)
    alone = torch.cat([_made(recipe, rows[place : place + 1], seeds[place : place + 1]) for place in (len(rows) - 1, 0)])
    elsewhere = ItemLoader(recipe, 1)
    there = elsewhere(Request(rows, seeds))
    elsewhere.close()
    for found, when in (
        (again, "a second time"),
        (others, "in another order"),
        (alone, "one by one"),
        (there, "in another process"),
    ):
        wanted = made[[len(rows) - 1, 0]] if found is alone else made
        if not torch.equal(found, wanted):
            raise UserError(
                f"the transform gave other views of the same images {when}, although the generators of torch, numpy and random "
                "were seeded alike: it counts, remembers, mixes images, or has a generator of its own. A view has to be a "
                "function of its image and of what it draws from these generators. [views-unsteady]"
            )
