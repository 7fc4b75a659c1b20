"""Makes random images and texts, in the shapes of a run's batches, to try engines and models on."""

from __future__ import annotations

import math

import torch

from dpfed.bounding.engines import GroupBatch
from dpfed.building.images import image_shape
from dpfed.building.method import contrasted
from dpfed.config import Config
from dpfed.data.views.record_views import Tokenizer
from dpfed.data.views.texts import TextViews
from dpfed.features.towers import Towers
from dpfed.objectives.classes import LABEL
from dpfed.privacy.plan import PrivacyPlan

_GROUPS, _CLASSES = 16, 3
_RECORDS = 4  # see `one_group`
_MOST_TRIED, _PIXELS_TRIED = 64, 64 * 64 * 64  # see `largest_pass`: 64 records of 64 pixels, or fewer larger ones


def dummy_batch(
    config: Config,
    plan: PrivacyPlan,
    tokenizer: Tokenizer | None,
    device: torch.device,
    towers: Towers | None = None,
    labelled: bool = False,
) -> GroupBatch:
    """Makes a few groups of random images and texts (or features); the sizes of the groups vary as in training.

    Args:
        config: Configuration with its defaults resolved.
        plan: Plan of the run; the batch and the group size matter, the number of records does not.
        tokenizer: Tokenizer of a model that reads text, else ``None``.
        device: Device of the batch.
        towers: Frozen towers whose features are computed once; the batch then holds features instead of images and tokens.
        labelled: Whether the loss reads the records' classes; the batch then has them.

    Returns:
        The batch. The same arguments give the same batch.
    """
    public = config.public.records if plan.bounding.method.public_records else 0
    count = max(1, min(plan.groups, config.bounding.microbatch // (plan.bounding.group_size + public), _GROUPS))
    generator = torch.Generator().manual_seed(0)
    if public:
        sizes = torch.full((count,), plan.bounding.group_size + public)
    else:
        sizes = torch.poisson(torch.full((count,), float(plan.bounding.group_size)), generator=generator).clamp(1).int()
    records, each = int(sizes.sum()), views_per_image(config)
    image = image_shape(config) if towers is None else (towers.image_width,)
    views = {"image": torch.randn(records, each, *image, generator=generator).to(device)}
    if towers is not None and towers.text is not None:
        views["text"] = torch.randn(records, 1, towers.text_width, generator=generator).to(device)
    elif tokenizer:
        texts = each if TextViews(config.text_views).active else 1
        shape = (records, texts, tokenizer.context)
        views["text"] = torch.randint(1, tokenizer.vocabulary, shape, generator=generator).to(device)
    if labelled:
        views[LABEL] = torch.randint(0, _CLASSES, (records, 1, 1), generator=generator).to(device)
    return GroupBatch(views, [0, *sizes.cumsum(0).tolist()])


def one_group(batch: GroupBatch, config: Config) -> GroupBatch:
    """Returns the first records of a batch as one small group.

    The group has at least one record more than the loss needs, if the batch has that many.
    """
    records = len(next(iter(batch.views.values())))
    count = min(records, max(_RECORDS, 1 + config.objective.loss.least, 1 + config.public.records))
    return GroupBatch({name: view[:count] for name, view in batch.views.items()}, [0, count])


def largest_pass(config: Config, plan: PrivacyPlan) -> int:
    """Estimates how many records pass through the model at once in the largest group; returns 64 at most.

    For methods that contrast the whole batch, the batch counts as the group, and a microbatch is a further limit. The function
    `dpfed.models.validation.check_independence` tries the model on this number of random images. For images of more than
    64 x 64 pixels the limit is lower than 64, but at least 2.

    Args:
        config: Configuration with its defaults resolved.
        plan: Plan of the run, or a sketch of it.
    """
    expected = contrasted(config)
    records = min(expected + math.ceil(4 * math.sqrt(expected)), plan.bounding.cap or plan.sampling.records)
    if plan.bounding.method.whole_batch:
        records = min(records, config.bounding.microbatch)
    return min(records, _MOST_TRIED, max(2, _PIXELS_TRIED // math.prod(image_shape(config)[1:])))


def views_per_image(config: Config, augmentations: int | None = None) -> int:
    """Returns V, the number of views of each image.

    Args:
        config: Configuration of the run.
        augmentations: N_a, number of views beyond those that the loss needs; default: the configuration's.
    """
    if config.views.count is not None and augmentations is None:
        return config.views.count
    further = config.objective.augmentations if augmentations is None else augmentations
    return further + (1 if config.model.reads_text else 2)
