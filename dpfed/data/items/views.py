"""Makes random views by a user's own transform, which may be any callable, for records of any data set."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfed.data.items.item import BrokenItem, described
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
    """Random views of an image, made by a transform of the user's own.

    Args:
        transform: Callable that makes a view of an image. It gets a PIL image or a tensor ``(C, H, W)``, as the data set gives
            it. Arrays are converted first: those of uint8 in the shape ``(H, W)`` or ``(H, W, 3)`` to PIL images, all others
            to tensors. The callable returns a float tensor ``(C, H, W)``, of the same shape for every image, or a list of all
            views at once. It may draw from the generators of torch, numpy and `random`, which are seeded for each view.
        count: V, number of views of each image. A transform that returns a list determines it. Default: 2, and 1 for models
            that read text.
        plain: Callable that makes the image for evaluation, without randomness. By default the image is scaled and cropped to
            the size of a view, integers become floats in [0, 1], and the result is normalised as in `transform`, if that is a
            `Compose` with a normalisation.

    Raises:
        UserError: If `transform` or `plain` is not callable, or `count` is not a whole number of at least 1.
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
    """Returns SimCLR's random augmentation without its blur: crops, flips, colour jitter, greyscale.

    A view is ``(3, size, size)`` float32 in [0, 1], not normalised.

    Args:
        size: Side of a view, pixels.
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
    """Returns a transform for evaluation. Its output has the shape and the normalisation of a training transform's views.

    Args:
        transform: Transform of training.
        shape: Shape (C, H, W) of a view.
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
    """Converts an image to a tensor.

    A PIL image is first converted to the number of channels of a view, if that is 1 (grey), 3 (RGB) or 4 (RGBA). PIL images of
    mode I;16, I or F keep their one channel.

    Args:
        channels: Number of channels of a view.
    """

    def __init__(self, channels: int) -> None:
        self._mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels)

    def __call__(self, image: Any) -> Tensor:
        from torchvision.transforms import v2

        if not isinstance(image, Tensor) and self._mode is not None and image.mode not in ("I;16", "I", "F"):
            image = image.convert(self._mode)
        tensor = v2.functional.to_image(image)
        return tensor.to(torch.uint16) if not isinstance(image, Tensor) and image.mode == "I;16" else tensor


class _AsTheyAre(ImageViews):
    """Stands for `ImageViews` where the user's transforms make the images as the model reads them: it changes nothing."""

    def __init__(self) -> None:
        super().__init__(ViewsConfig())

    def plain(self, images: Tensor) -> Tensor:
        """Returns the images unchanged."""
        return images


@dataclass(frozen=True, kw_only=True)
class ItemViews(RecordViews):
    """Prepares the records of a data set for the model, by transforms of the user's own.

    Only `Views.plain` prepares images for evaluation: no resizing or normalisation follows it.

    Attributes:
        records: Records of which views are made.
        loader: Loader that reads the records.
        shape: Shape (C, H, W) of a view.
        draws: Number of seeds for each record: one for each view, or one for a transform that makes all views at once.
    """

    records: Records
    loader: ItemLoader
    shape: Shape
    draws: int

    @classmethod
    def of(cls, records: Records, views: Views, count: int, tokenizer: Tokenizer | None = None) -> ItemViews:
        """Tries the user's transforms on up to 16 records, and returns the object that prepares all records.

        Args:
            records: Records, whether their items were read or not.
            views: Views that the user defined.
            count: V, number of views of each image, if `views` does not give it.
            tokenizer: Tokenizer of models that read text; ``None`` for image models.

        Raises:
            UserError: If there are no items; if one of these items cannot be read or has no image; if a transform fails, or
                returns something other than views, a number of views that differs from `views.count`, or different views for
                the same seeds; if plain images are random, or their shape is not that of the views; or if a process dies.
        """
        if not len(records):
            raise UserError(f"the data set {records.name} has no items, so no views can be made. [views-no-items]")
        count = views.count or count
        trial = Recipe(records.items, records.parts, views.transform, _unchanged)
        rows = np.arange(min(len(records), _TRIED))
        seeds = np.arange(1, 1 + len(rows) * count, dtype=np.uint64).reshape(len(rows), count)
        with generators_kept():
            made, at_once = _tried(trial, rows, seeds)
            _refuse_unsteady(trial, rows, seeds[:, :1] if at_once else seeds, made)
        if at_once and views.count is not None and made.shape[1] != views.count:
            raise UserError(
                f"the transform gives {made.shape[1]} views at once, but count is {views.count}: leave count out. "
                "[views-at-once]"
            )
        shape = (int(made.shape[2]), int(made.shape[3]), int(made.shape[4]))
        recipe = Recipe(records.items, records.parts, views.transform, views.plain or plain_like(views.transform, shape))
        plain = _plain(recipe, rows)
        if plain.shape[2:] != made.shape[2:]:
            raise UserError(
                f"views have the shape {shape}, but the plain images for evaluation have {tuple(plain.shape[2:])}: give "
                "Views(plain=...) a transform that makes images of the views' shape. [views-plain]"
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
        """Reads records' images and makes the plain images for evaluation, ``(n, C, H, W)`` float32.

        Args:
            store: Not used: the attribute `records` is read.
            indices: Indices of records, ``(n,)``.

        Raises:
            UserError: If an item cannot be read, `Views.plain` fails, or a process dies.
        """
        return self.loader(Request(np.asarray(indices)))[:, 0]

    def maker(self, store: RecordSet, count: int | None = None) -> ViewMaker:
        """Returns the object that makes the training views. The arguments are not used."""
        return ItemMaker(self)


class ItemMaker(ViewMaker):
    """Makes the random views of items. Each record's views depend only on that record and on what is drawn for it.

    Args:
        views: Object that prepares the records.
    """

    def __init__(self, views: ItemViews) -> None:
        read = functools.partial(views.read, views.records)
        super().__init__(views.records, read, views.images, views.count, views.tokenizer, views.texts)
        self._items = views

    def prefetch(self, batches: Iterable[np.ndarray], randomness: Randomness, step: int, device: torch.device) -> None:
        """Announces the indices of the next calls, so that processes can make views meanwhile; see `ViewMaker.prefetch`."""
        self._items.loader.prefetch([self._request(indices, randomness, step) for indices in batches if len(indices)])

    def _images(self, indices: np.ndarray, randomness: Randomness, step: int, device: torch.device) -> Tensor:
        if len(indices) == 0:
            return torch.zeros(0, self._items.count, *self._items.shape, device=device)
        made = self._items.loader(self._request(indices, randomness, step))
        if made.shape[1:] != (self._items.count, *self._items.shape):
            raise UserError(
                f"the views of some records are {tuple(made.shape[1:])} (V, C, H, W), and those of the first were "
                f"{(self._items.count, *self._items.shape)}: make equally many views of every record, all of one shape. "
                "[views-sizes]"
            )
        return to_device(made, device)

    def _request(self, indices: np.ndarray, randomness: Randomness, step: int) -> Request:
        keys, draws = self._store.keys[indices], self._items.draws
        words = [randomness.words("own views", step, keys, number) for number in range(-(-draws // 2))]
        return Request(np.asarray(indices), np.concatenate(words, axis=1)[:, :draws])


_TRIED = 16  # records on which a transform is tried
_TOGETHER, _MOST_TOGETHER = 64 << 20, 256  # bytes and records that are sent together from one process to another


def _unchanged(image: Any) -> Any:
    return image


def _tried(recipe: Recipe, rows: np.ndarray, seeds: np.ndarray) -> tuple[Tensor, bool]:
    """Tries a transform on n records.

    Returns:
        The views, ``(n, V, C, H, W)``, and whether the transform makes all views of an image at once.

    Raises:
        UserError: If an item cannot be read, has no image, or its views cannot be made.
    """
    with generators_kept():
        item = _item(recipe, int(rows[0]))
        try:
            first = recipe.parts.image_of(item)
        except BrokenItem as error:
            raise UserError(f"item {rows[0]:,} of the records has no image: {error}. [views-no-image]") from error
        try:
            views = recipe.transform(first)
        except Exception as error:
            raise UserError(
                f"the transform failed on an image ({described(first)}): {type(error).__name__}: {error}. [views-fail]"
            ) from error
    at_once = isinstance(views, list | tuple)
    return _made(recipe, rows, seeds[:, :1] if at_once else seeds), at_once


def _item(recipe: Recipe, row: int) -> Any:
    try:
        return recipe.items[row]
    except Exception as error:
        raise UserError(f"item {row} of the records cannot be read: {type(error).__name__}: {error}. [items-unread]") from error


def _made(recipe: Recipe, rows: np.ndarray, seeds: np.ndarray | None) -> Tensor:
    views = answer(recipe, Request(rows, seeds))
    if not isinstance(views, Tensor):
        raise UserError(f"the views of item {views.row:,} cannot be made: {views.said}. [views-broken]")
    return views


def _plain(recipe: Recipe, rows: np.ndarray) -> Tensor:
    with generators_kept():
        images = _made(recipe, rows, None)
        again = _made(recipe, rows[::-1].copy(), None).flip(0)
    if not torch.equal(images, again):
        raise UserError(
            "Views.plain gives different images of the same records the second time: it makes the images for evaluation, and "
            "must not be random. [views-plain-random]"
        )
    return images


def _refuse_unsteady(recipe: Recipe, rows: np.ndarray, seeds: np.ndarray, made: Tensor) -> None:
    """Rejects a transform whose views are not a function of the image and of the seed of the random generators.

    The views are made four more times: in the same order, in another order, in another process, and one by one (only those of
    the first and the last record).

    Args:
        recipe: Steps that turn an item into input of the model.
        rows: Rows of n records.
        seeds: Seeds of the records' views, ``(n, V)`` or ``(n, 1)``, see `Request`.
        made: Views of these records as they were made first.

    Raises:
        UserError: If views differ from `made`.
    """
    _made(recipe, rows[:1], seeds[:1, :1])  # an extra call detects a counter whose period is the number of calls of a trial
    again = _made(recipe, rows, seeds)
    others = _made(recipe, rows[::-1].copy(), seeds[::-1].copy()).flip(0)
    alone = torch.cat([_made(recipe, rows[place : place + 1], seeds[place : place + 1]) for place in (len(rows) - 1, 0)])
    elsewhere = ItemLoader(recipe, 1)
    there = elsewhere(Request(rows, seeds))
    elsewhere.close()
    for views, when in (
        (again, "a second time"),
        (others, "in another order"),
        (alone, "one by one"),
        (there, "in another process"),
    ):
        wanted = made[[len(rows) - 1, 0]] if views is alone else made
        if not torch.equal(views, wanted):
            raise UserError(
                f"the transform gave different views of the same images {when}, although the generators of torch, numpy and "
                "random were seeded in the same way: it counts, remembers, mixes images, or has a generator of its own. A view "
                "has to be a function of its image and of what it draws from these generators. [views-unsteady]"
            )
