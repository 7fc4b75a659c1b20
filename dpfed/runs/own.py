"""Opens, tries and checks a user's own parts of a run before any budget is spent."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from dpfed.building.images import image_shape
from dpfed.building.method import group_loss
from dpfed.building.own import OwnParts
from dpfed.config import Config
from dpfed.data.items.records import Records
from dpfed.data.items.views import ItemViews, Views, simclr_transform
from dpfed.data.store.records import RecordStore
from dpfed.data.views.record_views import RecordViews, Tokenizer
from dpfed.data.views.texts import TextViews
from dpfed.errors import UserError
from dpfed.losses import Loss
from dpfed.models.building import tokenizer_for
from dpfed.models.contract import embeddings_of
from dpfed.models.options import SIZE
from dpfed.models.own import OwnTokenizer, finish_model
from dpfed.objectives import OBJECTIVES, GroupLoss
from dpfed.objectives.classes import reads_labels
from dpfed.objectives.own import OwnLoss, refuse_unfit
from dpfed.privacy.method import method_named
from dpfed.progress import Progress
from dpfed.runs.records import records_of
from dpfed.runs.resolution import changed
from dpfed.schema.named import in_python

_TRANSFORM = "dpfed.data.items.views:simclr_transform"


def open_own(config: Config, parts: OwnParts, progress: Progress) -> tuple[ItemViews | None, Config]:
    """Opens a user's own records, and tries the user's own views.

    Args:
        config: Configuration of the run.
        parts: The user's own parts.
        progress: Progress, which shows the items that are read.

    Returns:
        The views, which hold the records (``None``: the user gave neither records nor views), and a configuration that states
        the shape and number of views. If the evaluation asks for the ``test`` split and the user's own records lack it, the
        configuration's split becomes one that they hold out, or ``none``.

    Raises:
        UserError: See `ItemViews.of`; also if reading a record twice gives different results; if the method makes its own
            views; if the default views cannot take the images' number of channels; if the model reads no text and there are
            fewer than two views of an image.
    """
    if parts.records is None and parts.views is None:
        return None, config
    refuse_methods(config)
    if parts.records is not None:
        parts.records.reads_labels = config.objective.loss.reads_labels if parts.loss is None else reads_labels(parts.loss)
    if parts.records is not None and config.evaluation.split == "test" and "test" not in parts.records.held_out:
        config = changed(config, evaluation={"split": parts.records.held_out[0] if parts.records.held_out else "none"})
    if parts.views is None and config.views.transform is None:
        _refuse_channels(parts.records)
        config = changed(config, views={"transform": _TRANSFORM, "options": {"size": config.data.size or SIZE}})
        parts = OwnParts(parts.records, parts.model, _default_views(config), parts.loss, parts.optimizer)
    records = _of_store(config, progress) if parts.records is None else parts.records  # not `or`: records of length 0 are false
    if records.store is None:
        records.advance = progress.stage("reading the records once", len(records))
    progress.note(f"opening the records: {records.name}, {len(records.keys):,} records")
    assert parts.views is not None
    default = 1 if config.model.reads_text else 2
    progress.note("trying the transform: does a view depend only on its image and its seed?")
    views = _tried(config, records, parts.views, default)
    shape = views.shape
    if not config.model.reads_text and views.count < 2:
        raise UserError(
            "the model reads images alone, so it contrasts two or more views of each image: give Views(count=2) or more "
            f"(views.count in a configuration), got {views.count}. [views-few]"
        )
    config = changed(config, views={"shape": shape, "count": views.count}, data={"size": shape[1], "resize": "crop"})
    return dataclasses.replace(views, texts=TextViews(config.text_views)), config


def _tried(config: Config, records: Records, views: Views, default: int) -> ItemViews:
    """Makes and tries the views of records.

    Raises:
        UserError: See `ItemViews.of`. If a function that the configuration names fails, the message also says how to call a
            function that makes the transform.
    """
    try:
        return ItemViews.of(records, views, default)
    except UserError as error:
        name = config.views.transform
        if error.code != "views-fail" or name is None or in_python(name) or config.views.options:
            raise
        raise UserError(
            f"{error.sentence} {name} got the image itself. If it is a function that makes the transform, give its arguments "
            "as [views.options]. [views-fail-named]"
        ) from error


def tokenizer_of(config: Config, parts: OwnParts) -> Tokenizer | None:
    """Returns the tokenizer of the user's own model, or else the configuration's; ``None`` if the model reads no text."""
    tokenizer = getattr(parts.model, "tokenizer", None)
    return tokenizer if isinstance(tokenizer, OwnTokenizer) else tokenizer_for(config.model)


def finished_model(config: Config, model: nn.Module, tokenizer: Tokenizer | None) -> nn.Module:
    """Runs a user's own model once, so that its lazy layers learn the width of their input, and returns the model.

    Raises:
        UserError: See `finish_model`.
    """
    tokens = None if tokenizer is None else tokenizer(["one text", "another"])
    finish_model(model, torch.zeros(2, *image_shape(config)), tokens)
    return model


def own_loss(config: Config, parts: OwnParts, model: nn.Module, views: RecordViews) -> GroupLoss:
    """Returns the loss of one group; first tries a user's own loss on the model's embeddings of random images.

    Raises:
        UserError: See `dpfed.objectives.own.refuse_unfit`; also for a user's own loss with ``bounding.method = 'public'``.
    """
    loss = group_loss(config, parts.loss)
    if isinstance(loss, OwnLoss):
        if method_named(config.bounding.method).public_records:
            raise UserError(
                "bounding.method = 'public' needs one of dpfed's own losses, because dpfed must know how much one record adds "
                "to a group of public records: leave your loss out, or choose another method. [loss-public]"
            )
        if isinstance(loss.function, Loss) and loss.function.objective.get("name") not in OBJECTIVES:
            loss.function.prepare(model, config.bounding.group_size)
        device, records, count = next(model.parameters()).device, 4, views.count
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            given = {"image": torch.randn(records, count, *image_shape(config), device=device)}
            if views.tokenizer is not None:
                texts = count if views.texts is not None and views.texts.active else 1
                shape = (records, texts, views.tokenizer.context)
                given["text"] = torch.randint(1, views.tokenizer.vocabulary, shape, device=device)
            embeddings = embeddings_of(model, given)
        refuse_unfit(loss.function, *(embeddings[name] for name in ("image", "text") if name in embeddings))
    return loss


def _of_store(config: Config, progress: Progress) -> Records:
    store = records_of(config, None, progress.note)
    assert isinstance(store, RecordStore)
    return Records(store)


def _default_views(config: Config) -> Views:
    return Views(simclr_transform(config.data.size or SIZE), config.views.count)


def _refuse_channels(records: Records | None) -> None:
    """Refuses images that the default views cannot take."""
    if records is None or not len(records):
        return
    try:
        image = records.parts.image_of(records.items[0])
    except Exception:  # opening the records reports what is wrong with an item
        return
    if isinstance(image, torch.Tensor) and len(image) not in (1, 3):
        raise UserError(
            f"the default views take images of 1 or 3 channels, but these images have {len(image)}: give a transform of your "
            "own (views= of dpfed.Trainer). [views-channels]"
        )


def refuse_methods(config: Config) -> None:
    """Refuses a user's own parts if the method makes its own views of a record store.

    Raises:
        UserError: If the method makes its own views; the message says what to do.
    """
    method = method_named(config.bounding.method)
    if method.public_records or method.closed_form:
        raise UserError(
            f"bounding.method = '{method.name}' makes its own views of a record store, and takes no records or transform of "
            "your own: import the records with `dpfed data import`, and train with `dpfed pretrain`, without views.transform. "
            "[views-method]"
        )
